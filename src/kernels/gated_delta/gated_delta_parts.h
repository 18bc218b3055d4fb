// Contracts in gated_delta.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"
#include "launch/sequence_ranges.h"
#include "lora_train/kernels/gated_delta/gated_delta_sizes.h"

namespace lora_train::kernels {

/// Rows of `qkv` hold q, k and v; those of a and b a value per value head.
template <class T>
struct GatedDeltaRows {
  Rows<const T> qkv, a, b;
  const float *a_log, *dt_bias;  ///< [Hv]
};

/// state [rows, Hv, dk, dv], used if there are state_rows.
template <class T>
void gated_delta_forward_cpu(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, HostRanges sequences, float* state,
                             Rows<T> out);

/// qkv, a and b overwritten, the others added to, or null.
template <class T>
struct GatedDeltaGradientRows {
  Rows<T> qkv, a, b;
  float *a_log, *dt_bias;
};

/// scratch [num_tokens / kChunkTokens, Hv, dk, dv]: states that the backward keeps.
template <class T>
void gated_delta_backward_cpu(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, HostRanges sequences,
                              Rows<const T> d_out, float* scratch, GatedDeltaGradientRows<T> gradients);

/// With the lists of their chunks, also in device memory.
struct DeviceSequences : DeviceRanges {
  const std::int32_t *cu_chunks, *chunk_sequence;
  std::int64_t num_chunks;  ///< the length of chunk_sequence
};

/// Floats per token of the scratch memory of a GPU, for elements of element_bytes: gated_delta_scratch_width() has room
/// for either.
constexpr std::int64_t gated_delta_scratch_width_cuda(const GatedDeltaSizes& shape, std::int64_t element_bytes) {
  const std::int64_t floats = (element_bytes == 4 ? 3 : 2) * shape.value_heads;
  return gated_delta_matrix_elements(shape) * element_bytes / 4 + (floats + 3) / 4 * 4;
}

/// scratch [num_tokens, gated_delta_scratch_width_cuda()], aligned to 16 bytes. Sequences with few tokens and states go
/// token by token.
template <class T>
void gated_delta_forward_cuda(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, DeviceSequences sequences, float* state,
                              float* scratch, Rows<T> out, Stream stream);

/// Of sequences without states. gradients.qkv must not overlap inputs.qkv.
template <class T>
void gated_delta_backward_cuda(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, DeviceSequences sequences,
                               Rows<const T> d_out, float* scratch, GatedDeltaGradientRows<T> gradients, Stream stream);

}  // namespace lora_train::kernels
