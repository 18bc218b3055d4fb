// Sequences side by side in the tokens of a pass: ranges that neither a convolution nor a recurrent state crosses. N
// tokens, S sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/kernels/gated_delta/gated_delta_sizes.h"

namespace lora_train::kernels {

/// The documents of a batch, or the pieces of a generation's pass.
struct Sequences {
  /// [S + 1], host: sequence s has the tokens [cu_seqlens[s], cu_seqlens[s + 1]). Sequences may be empty. Outputs and
  /// gradients of tokens past the last sequence are zero.
  std::vector<std::int64_t> cu_seqlens;
  /// On a GPU, int32. A recorded graph reads these only; S and `chunk_sequence` then have a fixed size.
  at::Tensor cu_seqlens_device;  ///< [S + 1]
  at::Tensor cu_chunks;          ///< [S + 1]: chunks of the sequences before
  at::Tensor chunk_sequence;     ///< [>= chunks]: the sequence of each chunk; -1: no such chunk
  /// [S] int64 on the device of the tokens: the row of each sequence in a tensor of states, which holds what the
  /// sequence begins with, and then what it ends with. Undefined: sequences begin with zeros, and nothing is kept.
  at::Tensor state_rows;

  std::int64_t size() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
};

/// Chunks of sequences whose lengths add up to num_tokens, at most.
constexpr std::int64_t most_chunks(std::int64_t num_tokens, std::int64_t num_sequences) {
  return num_tokens / kChunkTokens + num_sequences;
}

/// Fills cu_chunks [S + 1] and chunk_sequence, whose rest becomes -1, for these sequences. Throws ShapeError if it is
/// too short.
void list_chunks(std::span<const std::int32_t> cu_seqlens, std::span<std::int32_t> cu_chunks,
                 std::span<std::int32_t> chunk_sequence);

/// Sequences without states. Copies the lists to the device.
Sequences make_sequences(std::vector<std::int64_t> cu_seqlens, at::Device device);

}  // namespace lora_train::kernels
