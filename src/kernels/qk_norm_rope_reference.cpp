#include <ATen/ATen.h>

#include "qk_norm_rope_parts.h"

namespace lora_train::kernels {
namespace {

void turn_in_place(const QkNormRopeParts& parts, const at::Tensor& qk, const QkRotation& rotation, bool inverse) {
  const int64_t E = 2 * rotation.table.cos.size(-1);
  const int64_t H = rotation.num_heads, K = rotation.num_kv_heads;
  at::Tensor q = qk.narrow(1, 0, H * E).unflatten(1, {H, E}), k = qk.narrow(1, H * E, K * E).unflatten(1, {K, E});
  parts.rope(q, rotation.positions, rotation.table, inverse);
  parts.rope(k, rotation.positions, rotation.table, inverse);
}

}  // namespace

void qk_norm_rope_forward_by(const QkNormRopeParts& parts, at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  if (norm.q_weight.defined()) {
    const int64_t E = norm.q_weight.size(0);
    norm.raw.copy_(qkv.narrow(1, 0, norm.raw.size(1)));
    for (int64_t head = 0; head < rotation.num_heads + rotation.num_kv_heads; ++head) {
      at::Tensor y = qkv.narrow(1, head * E, E), rstd = norm.rstd.select(0, head);
      const at::Tensor& weight = head < rotation.num_heads ? norm.q_weight : norm.k_weight;
      parts.norm_forward(norm.raw.narrow(1, head * E, E), weight, norm.eps, y, rstd);
    }
  }
  turn_in_place(parts, qkv, rotation, false);
}

void qk_norm_rope_backward_by(const QkNormRopeParts& parts, at::Tensor& d_qk, const QkRotation& rotation, QkNorm& norm,
                              at::Tensor& d_qkv) {
  turn_in_place(parts, d_qk, rotation, true);
  if (!norm.q_weight.defined()) return;
  const int64_t E = norm.q_weight.size(0);
  for (int64_t head = 0; head < rotation.num_heads + rotation.num_kv_heads; ++head) {
    at::Tensor dx = d_qkv.narrow(1, head * E, E);
    const bool is_q = head < rotation.num_heads;
    parts.norm_backward(d_qk.narrow(1, head * E, E), norm.raw.narrow(1, head * E, E),
                        is_q ? norm.q_weight : norm.k_weight, norm.rstd.select(0, head), dx, false,
                        is_q ? &norm.grad_q_weight : &norm.grad_k_weight);
  }
}

void qk_norm_rope_forward_reference(at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  qk_norm_rope_forward_by({rms_norm_forward_reference, rms_norm_backward_reference, rope_in_place_reference}, qkv,
                          rotation, norm);
}

void qk_norm_rope_backward_reference(at::Tensor& d_qk, const QkRotation& rotation, QkNorm& norm, at::Tensor& d_qkv) {
  qk_norm_rope_backward_by({rms_norm_forward_reference, rms_norm_backward_reference, rope_in_place_reference}, d_qk,
                           rotation, norm, d_qkv);
}

}  // namespace lora_train::kernels
