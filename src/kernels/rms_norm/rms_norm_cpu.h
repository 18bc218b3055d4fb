// Contracts in rms_norm.h; plain pointers, strides in elements between rows. T is float or Bf16.
#pragma once

#include <cstdint>

#include "launch/rows.h"
#include "norm_weight.h"

namespace lora_train::kernels {

/// A residual without data adds nothing.
template <class T>
void rms_norm_forward_cpu(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                          float* rstd, std::int64_t num_rows, std::int64_t D);

template <class T>
void rms_norm_backward_cpu(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                           bool accumulate, std::int64_t num_rows, std::int64_t D);

/// dweight[d] += sum over rows of dy * x * rstd.
template <class T>
void rms_norm_weight_gradient_cpu(Rows<const T> dy, Rows<const T> x, const float* rstd, float* dweight,
                                  std::int64_t num_rows, std::int64_t D);

}  // namespace lora_train::kernels
