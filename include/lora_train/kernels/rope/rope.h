// Rotary position embedding of the first R dimensions of every head (in most models all), rotate-half pairing
// (i, i + R/2), alone or after a norm over E of every q and k head (Qwen3, Gemma 3). N tokens, H heads of q, K of k and
// of v, E head size. Source: RoFormer (arXiv 2104.09864); transformers apply_rotary_pos_emb.
#pragma once

#include <ATen/core/Tensor.h>

#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {

/// cos and sin of every position below num_positions, multiplied by attention_factor (yarn): [num_positions, R/2] fp32
/// each, with angles in fp32. inv_freq [R/2] fp32.
struct RopeTable {
  at::Tensor cos, sin;
  /// [num_positions] fp32: q is multiplied by it after the rotation, rounded to the dtype of q before and after, as in
  /// transformers' Ministral 3; not with a norm, nor with R below E. Undefined: no such factor.
  at::Tensor q_scale = {};
};
RopeTable make_rope_table(const at::Tensor& inv_freq, int64_t num_positions, double attention_factor);

/// Rotates x in place, without q_scale. x [N, H, E], E even and at least R, fp32, bf16 or fp64, strided over N, the
/// last two dimensions contiguous. positions [N] int32. `inverse` applies the transpose, which is the backward: it
/// rotates back, with the same attention_factor.
void rope_in_place(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse);

void rope_in_place_reference(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse);

// Norm (optional) and rotation over the q|k|v buffer. Rounds as rms_norm.h followed by rope_in_place.

/// The rotation of q and k.
struct QkRotation {
  int64_t num_heads = 0, num_kv_heads = 0, head_size = 0;
  const at::Tensor& positions;  ///< [N] int32
  const RopeTable& table;       ///< its width is R/2; R may be less than the head size
};

/// The norm over each head. Undefined weights: no norm, and no other member is used.
struct QkNorm {
  at::Tensor q_weight, k_weight;  ///< [E] dtype of qkv
  double eps = 0;
  at::Tensor raw;   ///< [N, (H + K) E] dtype of qkv, q and k before the norm; rows may be strided
  at::Tensor rstd;  ///< [H + K, N] fp32 (fp64 for fp64), rows may be strided
  /// [E] fp32 (fp64) or undefined: the backward accumulates the weight gradients into them.
  at::Tensor grad_q_weight, grad_k_weight;
  double weight_offset = 0;  ///< as in rms_norm_forward: 1 for Gemma
};

/// Normalises and rotates q and k, and scales q, of qkv [N, (H + 2K) E] in place; leaves v unchanged. Writes norm.raw
/// and norm.rstd. qkv fp32, bf16 or fp64, rows may be strided.
void qk_norm_rope_forward(at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm);

/// Writes d_qkv [N, (H + 2K) E], the gradient of the forward's input. `gradients` (from attention_backward) belong to
/// its output: q and k go through the inverse of rotation and scale, and the norm, v is copied. Each of the three is in
/// its columns of d_qkv, or outside d_qkv and then only read: [M, heads, E] with one M <= N for all, rows may be
/// strided. Zeroes rows of d_qkv from M on.
void qk_norm_rope_backward(const AttentionGradients& gradients, const QkRotation& rotation, QkNorm& norm,
                           at::Tensor& d_qkv);

void qk_norm_rope_forward_reference(at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm);
decltype(qk_norm_rope_backward) qk_norm_rope_backward_reference;

}  // namespace lora_train::kernels
