// An exponential that the compiler can vectorise, for CPU kernels. No torch.
#pragma once

#include <cstdint>

#include "bf16.h"
#include "lora_train/kernels/launch/cpu_clones.h"

namespace lora_train::kernels {

/// e^x to 1.5 ulp; 0 below -87, e^88 above 88, NaN for NaN. Range reduction by ln 2 in two parts (Cody and Waite), the
/// polynomial of the Cephes library's expf.
LORA_TRAIN_INLINE float fast_exp(float x) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer and leaves that in the low bits
  const float clamped = x > 88.0F ? 88.0F : (x < -87.0F ? -87.0F : x);
  const float shifted = clamped * 1.44269504F + kShift;
  const float n = shifted - kShift;
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = (p * r) * r + r + 1.0F;
  const float scale = float_of_bits((bits_of_float(shifted) - bits_of_float(kShift) + 127u) << 23);
  return x < -87.0F ? 0.0F : p * scale;
}

LORA_TRAIN_INLINE float fast_sigmoid(float x) { return 1.0F / (1.0F + fast_exp(-x)); }

}  // namespace lora_train::kernels
