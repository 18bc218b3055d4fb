// The product of a linear, by the kernel that the pass asks for.
#pragma once

#include "lora_train/kernels/gemm.h"
#include "lora_train/kernels/skinny_gemm.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// y = extras.alpha x weight^T + extras.bias + extras.residual. x [N, D], weight [O, D], y [N, O].
inline void linear_product(Product kind, const at::Tensor& x, const at::Tensor& weight,
                           const kernels::GemmExtras& extras, at::Tensor& y) {
  if (kind == Product::kSkinny) {
    return kernels::skinny_gemm(x, weight, extras.bias, extras.residual, y, extras.alpha);
  }
  kernels::gemm(x, weight.t(), y, extras);
}

}  // namespace lora_train::model
