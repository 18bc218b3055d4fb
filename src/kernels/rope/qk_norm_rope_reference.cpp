#include <ATen/ATen.h>

#include "qk_norm_rope_parts.h"

namespace lora_train::kernels {
namespace {

void copy_unless_there(const at::Tensor& gradient, at::Tensor& place) {
  if (!lies_in(place, gradient)) place.copy_(gradient);
}

void rotate_in_place(const QkNormRopeParts& parts, const at::Tensor& qk, const QkRotation& rotation, bool inverse) {
  const int64_t E = 2 * rotation.table.cos.size(-1);
  const int64_t H = rotation.num_heads, K = rotation.num_kv_heads;
  at::Tensor q = qk.narrow(1, 0, H * E).unflatten(1, {H, E}), k = qk.narrow(1, H * E, K * E).unflatten(1, {K, E});
  parts.rope(q, rotation.positions, rotation.table, inverse);
  parts.rope(k, rotation.positions, rotation.table, inverse);
}

}  // namespace

bool lies_in(const at::Tensor& place, const at::Tensor& gradient) {
  return gradient.is_alias_of(place) && gradient.storage_offset() == place.storage_offset() &&
         gradient.stride(0) == place.stride(0);
}

AttentionGradients places_of(const AttentionGradients& gradients, const QkRotation& rotation, const at::Tensor& d_qkv) {
  const int64_t H = rotation.num_heads, K = rotation.num_kv_heads, E = 2 * rotation.table.cos.size(-1);
  const auto place = [&](int64_t begin, int64_t heads) {
    return d_qkv.narrow(0, 0, gradients.q.size(0)).narrow(1, begin * E, heads * E).unflatten(1, {heads, E});
  };
  return {place(0, H), place(H, K), place(H + K, K)};
}

void qk_norm_rope_forward_by(const QkNormRopeParts& parts, at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  if (norm.q_weight.defined()) {
    const int64_t E = norm.q_weight.size(0);
    norm.raw.copy_(qkv.narrow(1, 0, norm.raw.size(1)));
    for (int64_t head = 0; head < rotation.num_heads + rotation.num_kv_heads; ++head) {
      at::Tensor y = qkv.narrow(1, head * E, E), rstd = norm.rstd.select(0, head);
      const at::Tensor& weight = head < rotation.num_heads ? norm.q_weight : norm.k_weight;
      parts.norm_forward(norm.raw.narrow(1, head * E, E), weight, norm.eps, y, rstd, norm.weight_offset);
    }
  }
  rotate_in_place(parts, qkv, rotation, false);
}

void qk_norm_rope_backward_by(const QkNormRopeParts& parts, const AttentionGradients& gradients,
                              const QkRotation& rotation, QkNorm& norm, at::Tensor& d_qkv) {
  AttentionGradients places = places_of(gradients, rotation, d_qkv);
  copy_unless_there(gradients.q, places.q);
  copy_unless_there(gradients.k, places.k);
  copy_unless_there(gradients.v, places.v);
  const int64_t M = gradients.q.size(0);
  if (M < d_qkv.size(0)) d_qkv.narrow(0, M, d_qkv.size(0) - M).zero_();
  rotate_in_place(parts, d_qkv, rotation, true);
  if (!norm.q_weight.defined()) return;
  const int64_t E = norm.q_weight.size(0);
  for (int64_t head = 0; head < rotation.num_heads + rotation.num_kv_heads; ++head) {
    at::Tensor dx = d_qkv.narrow(1, head * E, E);
    const bool is_q = head < rotation.num_heads;
    parts.norm_backward(dx, norm.raw.narrow(1, head * E, E), is_q ? norm.q_weight : norm.k_weight,
                        norm.rstd.select(0, head), dx, false, is_q ? &norm.grad_q_weight : &norm.grad_k_weight,
                        norm.weight_offset);
  }
}

void qk_norm_rope_forward_reference(at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  qk_norm_rope_forward_by({rms_norm_forward_reference, rms_norm_backward_reference, rope_in_place_reference}, qkv,
                          rotation, norm);
}

void qk_norm_rope_backward_reference(const AttentionGradients& gradients, const QkRotation& rotation, QkNorm& norm,
                                     at::Tensor& d_qkv) {
  qk_norm_rope_backward_by({rms_norm_forward_reference, rms_norm_backward_reference, rope_in_place_reference},
                           gradients, rotation, norm, d_qkv);
}

}  // namespace lora_train::kernels
