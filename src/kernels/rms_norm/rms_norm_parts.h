// Contracts in rms_norm.h; strides in elements between rows. T is float or Bf16. On a GPU in stream order: pointers are
// device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

template <class T>
struct NormWeight {
  const T* values;   ///< [D]
  float offset = 0;  ///< added to every value: 1 for Gemma
};

/// normed * (offset + weight). Without an offset, the normed value is rounded to T first, as in Llama; Gemma rounds
/// once.
template <class T>
LORA_TRAIN_INLINE float times_norm_weight(float normed, float weight, float offset) {
  return offset == 0 ? rounded_to<T>(normed) * weight : normed * (offset + weight);
}

/// A residual without data is not added.
LORA_TRAIN_CPU_AND_CUDA(rms_norm_forward, Rows<const T> x, NormWeight<T> weight, float eps, Rows<const T> residual,
                        Rows<T> y, float* rstd, std::int64_t num_rows, std::int64_t D);

LORA_TRAIN_CPU_AND_CUDA(rms_norm_backward, Rows<const T> dy, Rows<const T> x, NormWeight<T> weight, const float* rstd,
                        Rows<T> dx, bool accumulate, std::int64_t num_rows, std::int64_t D);

/// dweight[d] += sum over rows of dy * x * rstd.
LORA_TRAIN_CPU_AND_CUDA(rms_norm_weight_gradient, Rows<const T> dy, Rows<const T> x, const float* rstd, float* dweight,
                        std::int64_t num_rows, std::int64_t D);

}  // namespace lora_train::kernels
