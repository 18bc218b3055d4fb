// The product of a linear, with the kernel that the pass selects.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// The same with a bf16 weight beside an fp32 x: part after part of the weight is widened, as much as stays in a cache.
inline void widened_product(const at::Tensor& x, const at::Tensor& weight, const kernels::GemmExtras& extras,
                            at::Tensor& y) {
  constexpr std::int64_t kPartElements = 1 << 19;
  const std::int64_t O = weight.size(0), step = std::clamp<std::int64_t>(kPartElements / weight.size(1), 1, O);
  const at::Tensor buffer = at::empty({step, weight.size(1)}, x.options());
  for (std::int64_t begin = 0; begin < O; begin += step) {
    const std::int64_t count = std::min(step, O - begin);
    const auto narrowed = [&](const at::Tensor& t, std::int64_t dim) {
      return t.defined() ? t.narrow(dim, begin, count) : t;
    };
    const at::Tensor part = buffer.narrow(0, 0, count).copy_(weight.narrow(0, begin, count));
    kernels::GemmExtras of_part = extras;
    of_part.bias = narrowed(extras.bias, 0);
    of_part.residual = narrowed(extras.residual, 1);
    at::Tensor out = y.narrow(1, begin, count);
    kernels::gemm(x, part.t(), out, of_part);
  }
}

/// y = extras.alpha x weight^T + extras.bias + extras.residual. x [N, D], weight [O, D], bf16 beside an fp32 x too, y [N, O].
inline void linear_product(Product kind, const at::Tensor& x, const at::Tensor& weight,
                           const kernels::GemmExtras& extras, at::Tensor& y) {
  if (kind == Product::kSkinny) {
    return kernels::skinny_gemm(x, weight, extras.bias, extras.residual, y, extras.alpha);
  }
  if (weight.scalar_type() != x.scalar_type()) return widened_product(x, weight, extras, y);
  kernels::gemm(x, weight.t(), y, extras);
}

}  // namespace lora_train::model
