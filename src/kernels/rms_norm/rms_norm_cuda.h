// Contracts in rms_norm_cpu.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch here.
#pragma once

#include <cstdint>

#include "launch/rows.h"
#include "norm_weight.h"

namespace lora_train::kernels {

template <class T>
void rms_norm_forward_cuda(Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual, Rows<T> y,
                           float* rstd, std::int64_t num_rows, std::int64_t D, Stream stream);

template <class T>
void rms_norm_backward_cuda(Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd, Rows<T> dx,
                            bool accumulate, std::int64_t num_rows, std::int64_t D, Stream stream);

/// dweight[d] += sum over rows of dy * x * rstd.
template <class T>
void rms_norm_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, const float* rstd, float* dweight,
                                   std::int64_t num_rows, std::int64_t D, Stream stream);

}  // namespace lora_train::kernels
