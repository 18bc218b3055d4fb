// Contracts as lora_cpu.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch_stream.h"
#include "rows.h"

namespace lora_train::kernels {

/// Ranks that one pass over the big matrix takes.
constexpr std::int64_t kLoraRanks = 64;

/// How the tokens of thin^T big are split: every chunk leaves [ranks, columns] partial sums in the workspace.
struct LoraChunks {
  std::int64_t num_chunks, chunk_tokens;
  std::int64_t padded_columns;  ///< a multiple of 8
  std::int64_t workspace_elements;
};

/// For N tokens, C columns and R ranks. As many chunks as keep a large GPU busy, each of at least 128 tokens, and no
/// more than 12 Mi elements where one chunk takes less.
constexpr LoraChunks lora_chunks(std::int64_t N, std::int64_t C, std::int64_t R) {
  constexpr std::int64_t kFewestTokens = 128, kMostElements = 12 * 1024 * 1024, kThreads = 132 * 1024,
                         kBlockColumns = 512;
  const std::int64_t ranks = std::min(R, kLoraRanks), padded = (C + 7) / 8 * 8;
  const std::int64_t block_threads = (ranks + 7) / 8 * 64, column_blocks = (C + kBlockColumns - 1) / kBlockColumns;
  const std::int64_t wanted = kThreads / (block_threads * std::max<std::int64_t>(column_blocks, 1));
  const std::int64_t fit = kMostElements / std::max<std::int64_t>(ranks * padded, 1);
  const std::int64_t most = std::max<std::int64_t>(1, std::min(wanted, fit));
  const std::int64_t tokens = std::max(kFewestTokens, (N + most - 1) / most);
  const std::int64_t num_chunks = (N + tokens - 1) / tokens;
  return {num_chunks, tokens, padded, num_chunks * ranks * padded};
}

/// workspace [lora_chunks(N, O, R).workspace_elements], aligned to 16 bytes.
template <class T>
void lora_grad_b_cuda(Rows<const T> dy, Rows<const T> s, float scale, Rows<float> grad_b, std::int64_t N,
                      std::int64_t O, std::int64_t R, float* workspace, Stream stream);

/// workspace [lora_chunks(N, D, R).workspace_elements], aligned to 16 bytes.
template <class T>
void lora_grad_a_cuda(Rows<const T> ds, Rows<const T> x, Rows<float> grad_a, std::int64_t N, std::int64_t D,
                      std::int64_t R, float* workspace, Stream stream);

}  // namespace lora_train::kernels
