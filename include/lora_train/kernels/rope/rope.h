// Rotary position embedding, rotate-half pairing (i, i + E/2). N tokens, H heads, E head size.
// Source: RoFormer (arXiv 2104.09864); transformers apply_rotary_pos_emb.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// cos and sin of every position below num_positions, multiplied by attention_factor (yarn): [num_positions, E/2] fp32 each, with
/// angles in fp32. inv_freq [E/2] fp32.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable make_rope_table(const at::Tensor& inv_freq, int64_t num_positions, double attention_factor);

/// Rotates x in place. x [N, H, E] fp32, bf16 or fp64, strided over N, the last two dimensions contiguous. positions [N] int32.
/// `inverse` applies the transpose, which is the backward: it rotates back, with the same attention_factor.
void rope_in_place(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse);

void rope_in_place_reference(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse);

}  // namespace lora_train::kernels
