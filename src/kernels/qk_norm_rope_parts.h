// qk_norm_rope put together from rms_norm and rope: the reference from references, the CPU path from what a CPU has.
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
void qk_norm_rope_backward_by(const QkNormRopeParts& parts, at::Tensor& d_qk, const QkRotation& rotation, QkNorm& norm,
                              at::Tensor& d_qkv);

}  // namespace lora_train::kernels
