// The product of a linear, with the kernel that the pass selects.
#pragma once

#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/skinny_gemm.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// y = extras.alpha x weight^T + extras.bias + extras.residual. x [N, D], weight [O, D], bf16 beside an fp32 x too, y [N, O].
inline void linear_product(Product kind, const at::Tensor& x, const at::Tensor& weight,
                           const kernels::GemmExtras& extras, at::Tensor& y) {
  if (kind == Product::kSkinny) {
    return kernels::skinny_gemm(x, weight, extras.bias, extras.residual, y, extras.alpha);
  }
  kernels::gemm(x, weight.to(x.scalar_type()).t(), y, extras);
}

}  // namespace lora_train::model
