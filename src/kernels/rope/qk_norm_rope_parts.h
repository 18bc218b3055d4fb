// qk_norm_rope composed of rms_norm and rope: the reference from references, the CPU path from CPU kernels.
#pragma once

#include "lora_train/kernels/qk_norm_rope.h"
#include "lora_train/kernels/rms_norm.h"

namespace lora_train::kernels {

struct QkNormRopeParts {
  decltype(&rms_norm_forward) norm_forward;
  decltype(&rms_norm_backward) norm_backward;
  decltype(&rope_in_place) rope;
};

void qk_norm_rope_forward_by(const QkNormRopeParts& parts, at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm);
/// Copies the gradients into d_qkv where they lie elsewhere, and works in place.
void qk_norm_rope_backward_by(const QkNormRopeParts& parts, const AttentionGradients& gradients,
                              const QkRotation& rotation, QkNorm& norm, at::Tensor& d_qkv);

/// The columns of d_qkv for the gradients of q, k and v, for as many tokens as those have.
AttentionGradients places_of(const AttentionGradients& gradients, const QkRotation& rotation, const at::Tensor& d_qkv);

/// True when a gradient already lies in its columns.
bool lies_in(const at::Tensor& place, const at::Tensor& gradient);

}  // namespace lora_train::kernels
