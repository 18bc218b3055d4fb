// Contracts as lora_cpu.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch_stream.h"
#include "lora_targets.h"
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

/// For N tokens, C columns and R ranks. As many chunks as keep a large GPU busy, and no more than 12 Mi elements where one
/// chunk takes less. A chunk has at least 128 tokens, so that its partial sums are few beside what it reads; small models and
/// micro-batches, which would leave multiprocessors without a block, are cut into chunks of down to 32.
constexpr LoraChunks lora_chunks(std::int64_t N, std::int64_t C, std::int64_t R) {
  constexpr std::int64_t kManyTokens = 128, kFewTokens = 32, kMostElements = 12 * 1024 * 1024, kThreads = 132 * 1024,
                         kFewBlocks = 2 * 132, kBlockColumns = 512;
  const std::int64_t ranks = std::min(R, kLoraRanks), padded = (C + 7) / 8 * 8;
  const std::int64_t block_threads = (ranks + 7) / 8 * 64, column_blocks = (C + kBlockColumns - 1) / kBlockColumns;
  const std::int64_t wanted = kThreads / (block_threads * std::max<std::int64_t>(column_blocks, 1));
  const std::int64_t fit = kMostElements / std::max<std::int64_t>(ranks * padded, 1);
  const std::int64_t most = std::max<std::int64_t>(1, std::min(wanted, fit));
  const std::int64_t for_blocks = N * column_blocks / kFewBlocks;
  const std::int64_t tokens = std::max(std::clamp(for_blocks, kFewTokens, kManyTokens), (N + most - 1) / most);
  const std::int64_t num_chunks = (N + tokens - 1) / tokens;
  return {num_chunks, tokens, padded, num_chunks * ranks * padded};
}

/// One product thin^T big: columns [begin, begin + width) of big, columns [column, column + ranks) of the thin side.
struct LoraSlice {
  std::int64_t begin, width, column, ranks;
};

/// What is computed together: big is read once for each kLoraRanks of the most ranks of a slice.
struct LoraProduct {
  LoraSlice slices[kMostLoraTargets];
  int num_slices;
  std::int64_t num_tokens;

  std::int64_t most_ranks() const {
    std::int64_t most = 0;
    for (int i = 0; i < num_slices; ++i) most = std::max(most, slices[i].ranks);
    return most;
  }
  /// Of the partial sums, where every slice begins at a multiple of 8.
  std::int64_t padded_columns() const {
    std::int64_t sum = 0;
    for (int i = 0; i < num_slices; ++i) sum += (slices[i].width + 7) / 8 * 8;
    return sum;
  }
  std::int64_t num_passes() const { return (most_ranks() + kLoraRanks - 1) / kLoraRanks; }
  LoraChunks chunks() const { return lora_chunks(num_tokens, padded_columns(), most_ranks()); }
  std::int64_t flops() const {
    std::int64_t sum = 0;
    for (int i = 0; i < num_slices; ++i) sum += 2 * num_tokens * slices[i].width * slices[i].ranks;
    return sum;
  }
};

/// Of lora_grad_b: every part has its columns of dy and of s.
inline LoraProduct lora_product_b(const LoraTargets& targets, std::int64_t N) {
  LoraProduct product{{}, targets.count, N};
  for (int i = 0; i < targets.count; ++i) {
    const LoraTarget& t = targets.list[i];
    product.slices[i] = {t.out_begin, t.out_end - t.out_begin, t.column, t.rank};
  }
  return product;
}

/// Of lora_grad_a: all parts share x.
inline LoraProduct lora_product_a(const LoraTargets& targets, std::int64_t N, std::int64_t D) {
  return {{{0, D, 0, targets.num_columns()}}, 1, N};
}

/// workspace [lora_product_b(targets, N).chunks().workspace_elements], aligned to 16 bytes.
template <class T>
void lora_grad_b_cuda(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, std::int64_t N, float* workspace,
                      Stream stream);

/// x has D columns. workspace [lora_product_a(targets, N, D).chunks().workspace_elements], aligned to 16 bytes.
template <class T>
void lora_grad_a_cuda(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, std::int64_t N, std::int64_t D,
                      float* workspace, Stream stream);

}  // namespace lora_train::kernels
