// Data types of kernels on CPU and GPU: bf16 as 16 bits with the same rounding on both, strided rows, packs of 16
// bytes; and an exponential that a CPU vectorises. No torch.
#pragma once

#include <cstdint>
#include <cstring>

#include "lora_train/kernels/launch/parallel.h"

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

/// Declares a kernel for a CPU, name_cpu<T>(parameters...), and for a GPU, name_cuda<T>(parameters..., Stream).
#define LORA_TRAIN_CPU_AND_CUDA(name, ...) \
  template <class T>                       \
  void name##_cpu(__VA_ARGS__);            \
  template <class T>                       \
  void name##_cuda(__VA_ARGS__, Stream stream)

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

/// A cudaStream_t; null on the CPU.
using Stream = void*;

/// Contiguous rows, `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  LORA_TRAIN_INLINE T* operator[](std::int64_t row) const { return data + row * stride; }
};

/// The grain of parallel_ranges for rows of this many elements: fewer rows per thread cost more than they gain.
inline std::int64_t row_grain(std::int64_t row_elements) {
  constexpr std::int64_t kElements = 16384;
  return row_elements >= kElements ? 1 : (kElements + row_elements) / (row_elements + 1);
}

// Vectorised memory accesses for CUDA kernels: 16 bytes per access if the rows are aligned, else one element.

template <class T, int kSize>
struct alignas(kSize * sizeof(T)) Pack {
  T values[kSize];
};

/// Elements of T in 16 bytes.
template <class T>
constexpr int kFullPack = 16 / sizeof(T);

template <int kSize, class T>
LORA_TRAIN_INLINE Pack<T, kSize> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, kSize>*>(p);
}

template <int kSize, class T>
LORA_TRAIN_INLINE void store_pack(T* p, const Pack<T, kSize>& pack) {
#ifdef __CUDA_ARCH__
  // Without this, nvcc splits the store of a freshly computed pack. Global memory only.
  if constexpr (sizeof(pack) == 16) {
    uint4 bits;
    memcpy(&bits, &pack, sizeof bits);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(bits.x),
                 "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
    return;
  }
#endif
  *reinterpret_cast<Pack<T, kSize>*>(p) = pack;
}

/// kSize elements as floats, in accesses of at most 16 bytes.
template <int kSize, class T>
LORA_TRAIN_INLINE void load_floats(const T* p, float* values) {
  constexpr int kStep = kSize < kFullPack<T> ? kSize : kFullPack<T>;
  for (int i = 0; i < kSize; i += kStep) {
    const Pack<T, kStep> pack = load_pack<kStep>(p + i);
    for (int k = 0; k < kStep; ++k) values[i + k] = to_float(pack.values[k]);
  }
}

template <int kSize, class T>
LORA_TRAIN_INLINE void store_floats(T* p, const float* values) {
  constexpr int kStep = kSize < kFullPack<T> ? kSize : kFullPack<T>;
  for (int i = 0; i < kSize; i += kStep) {
    Pack<T, kStep> pack;
    for (int k = 0; k < kStep; ++k) store(&pack.values[k], values[i + k]);
    store_pack<kStep>(p + i, pack);
  }
}

/// True if every row of `width` elements, `begin` columns into `rows`, can be accessed in packs of 16 bytes. Checks the
/// address only, and never reads the data.
template <class T>
bool fits_packs(Rows<T> rows, std::int64_t width, std::int64_t begin = 0) {
  const std::uintptr_t address =
      reinterpret_cast<std::uintptr_t>(rows.data) + static_cast<std::uintptr_t>(begin) * sizeof(T);
  return address % 16 == 0 && rows.stride % kFullPack<T> == 0 && width % kFullPack<T> == 0;
}

/// The same of all `rows`.
template <class... T>
bool all_fit_packs(std::int64_t width, Rows<T>... rows) {
  return (fits_packs(rows, width) && ...);
}

/// The block size for a row of `packs`: a multiple of 32 between 32 and `most`.
inline unsigned threads_for(std::int64_t packs, unsigned most) {
  const std::int64_t rounded = (packs + 31) / 32 * 32;
  return rounded < 32 ? 32U : rounded > most ? most : static_cast<unsigned>(rounded);
}

/// The same for threads that take packs in turns: the fewest threads for the same number of turns, so that all take
/// nearly as many.
inline unsigned even_threads_for(std::int64_t packs, unsigned most) {
  const std::int64_t turns = (packs + most - 1) / most;
  return threads_for(turns == 0 ? 0 : (packs + turns - 1) / turns, most);
}

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
