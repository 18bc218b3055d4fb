// qk_norm_rope composed of rms_norm and rope: the reference of references, the CPU path of CPU kernels.
#pragma once

#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "lora_train/kernels/rope/qk_norm_rope.h"

namespace lora_train::kernels {

struct QkNormRopeParts {
  decltype(&rms_norm_forward) norm_forward;
  decltype(&rms_norm_backward) norm_backward;
  decltype(&rope_in_place) rope;
};

void qk_norm_rope_forward_by(const QkNormRopeParts& parts, at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm);
/// Copies gradients that lie elsewhere into d_qkv, then works in place.
void qk_norm_rope_backward_by(const QkNormRopeParts& parts, const AttentionGradients& gradients,
                              const QkRotation& rotation, QkNorm& norm, at::Tensor& d_qkv);

/// The columns of d_qkv that take the gradients of q, k and v, narrowed to as many tokens as those have.
AttentionGradients places_of(const AttentionGradients& gradients, const QkRotation& rotation, const at::Tensor& d_qkv);

/// True if a gradient already lies in its columns of d_qkv.
bool lies_in(const at::Tensor& place, const at::Tensor& gradient);

}  // namespace lora_train::kernels
