// The weight of an RMS norm as a kernel argument, on CPU and GPU. No torch.
#pragma once

#include "launch/bf16.h"

namespace lora_train::kernels {

template <class T>
struct NormWeight {
  const T* values;   ///< [D]
  float offset = 0;  ///< added to every value: 1 for Gemma
};

/// normed * (offset + weight). Without an offset, the normed value is rounded to T first, as in Llama; Gemma rounds once.
template <class T>
LORA_TRAIN_INLINE float times_norm_weight(float normed, float weight, float offset) {
  return offset == 0 ? rounded_to<T>(normed) * weight : normed * (offset + weight);
}

}  // namespace lora_train::kernels
