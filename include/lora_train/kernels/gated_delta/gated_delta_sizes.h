// The sizes of a gated delta net (gated_delta.h). No torch.
#pragma once

#include <cstdint>

namespace lora_train::kernels {

struct GatedDeltaSizes {
  std::int64_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0;  ///< Hk, Hv, dk, dv

  std::int64_t key_width() const { return key_heads * key_size; }
  std::int64_t value_width() const { return value_heads * value_size; }
  std::int64_t qkv_width() const { return 2 * key_width() + value_width(); }
  std::int64_t state_elements() const { return value_heads * key_size * value_size; }
  bool operator==(const GatedDeltaSizes&) const = default;
};

/// Tokens that the chunked form takes together; the last chunk of a sequence may be shorter.
constexpr std::int64_t kChunkTokens = 64;

/// FLOPs of the forward's products per token of full chunks: pairs of a chunk's tokens in order, twice by dk and twice
/// by dv, and three products with the state.
constexpr std::int64_t gated_delta_flops(const GatedDeltaSizes& sizes) {
  const std::int64_t dk = sizes.key_size, dv = sizes.value_size;
  return sizes.value_heads * (2 * (kChunkTokens + 1) * (dk + dv) + 6 * dk * dv);
}

/// The most that dk and dv may be on a GPU.
constexpr std::int64_t kGatedDeltaMostSize = 128;
/// Columns of a head in the scratch memory of a GPU.
constexpr std::int64_t gated_delta_padded_size(const GatedDeltaSizes& sizes) {
  return sizes.key_size <= 32 && sizes.value_size <= 32 ? 32 : kGatedDeltaMostSize;
}

/// Elements per token of the matrices in the scratch memory of a GPU: q and k of the key heads; of the value heads
/// states and their gradients, three rows and one of chunk tokens.
constexpr std::int64_t gated_delta_matrix_elements(const GatedDeltaSizes& sizes) {
  const std::int64_t size = gated_delta_padded_size(sizes), states = 2 * size * size / kChunkTokens;
  return 2 * sizes.key_heads * size + sizes.value_heads * (states + 3 * size + kChunkTokens);
}

/// Elements of the compute dtype per token of the scratch memory that forward and backward need; layers share it. A GPU
/// has these matrices, and of the value heads two fp32 numbers, or beside fp32 elements an fp64 and an fp32 one. A CPU
/// needs less: the states, in fp32.
constexpr std::int64_t gated_delta_scratch_width(const GatedDeltaSizes& sizes) {
  return gated_delta_matrix_elements(sizes) + 2 * ((2 * sizes.value_heads + 3) / 4 * 4);
}

}  // namespace lora_train::kernels
