// bf16 as 16 bits, with the same rounding on host and GPU. No torch here.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define LORA_TRAIN_INLINE __host__ __device__ __forceinline__
#else
#define LORA_TRAIN_INLINE inline __attribute__((always_inline))
#endif

namespace lora_train::kernels {

struct Bf16 {
  std::uint16_t bits;
};

LORA_TRAIN_INLINE float float_of_bits(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

LORA_TRAIN_INLINE std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

LORA_TRAIN_INLINE float to_float(float value) { return value; }
LORA_TRAIN_INLINE float to_float(Bf16 value) { return float_of_bits(std::uint32_t{value.bits} << 16); }

/// Round to nearest even; NaN stays NaN.
LORA_TRAIN_INLINE Bf16 to_bf16(float value) {
#ifdef __CUDA_ARCH__
  std::uint16_t converted;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(converted) : "f"(value));
  return {converted};
#else
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded)};
#endif
}

LORA_TRAIN_INLINE float load(const float* p) { return *p; }
LORA_TRAIN_INLINE float load(const Bf16* p) { return to_float(*p); }
LORA_TRAIN_INLINE void store(float* p, float value) { *p = value; }
LORA_TRAIN_INLINE void store(Bf16* p, float value) { *p = to_bf16(value); }

/// Instantiates a function template for both element types.
#define LORA_TRAIN_INSTANTIATE(function)              \
  template decltype(function<float>) function<float>; \
  template decltype(function<Bf16>) function<Bf16>

/// The value rounded to T.
template <class T>
LORA_TRAIN_INLINE float rounded_to(float value) {
  T t;
  store(&t, value);
  return load(&t);
}

}  // namespace lora_train::kernels
