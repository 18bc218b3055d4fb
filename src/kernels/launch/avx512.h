// Vectors of 16 floats and 32 bf16 values, for code that runs only on x86-64-v4 (has_avx512()). No torch.
#pragma once

#include "launch/elements.h"
#include "launch/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <memory>
#include <new>

/// Compiles a function for it.
#define LORA_TRAIN_V4 __attribute__((target("arch=x86-64-v4")))
#define LORA_TRAIN_V4_INLINE LORA_TRAIN_V4 __attribute__((always_inline)) inline

namespace lora_train::kernels {

constexpr std::int64_t kLanes = 16;
constexpr float kLog2E = 1.44269504F;

struct Free {
  void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free>;

/// Uninitialised, aligned to cache lines.
template <class T>
Buffer<T> make_buffer(std::int64_t count) {
  return Buffer<T>(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), std::align_val_t(64))));
}

/// The first `count` of 16 lanes.
LORA_TRAIN_V4_INLINE __mmask16 first_lanes(std::int64_t count) {
  return count >= kLanes ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << std::max<std::int64_t>(count, 0)) - 1);
}

LORA_TRAIN_V4_INLINE __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
LORA_TRAIN_V4_INLINE __m512 load16(const Bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/// Zeros in other lanes.
LORA_TRAIN_V4_INLINE __m512 masked_load16(const float* p, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, p); }
LORA_TRAIN_V4_INLINE __m512 masked_load16(const Bf16* p, __mmask16 lanes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p)), 16));
}

LORA_TRAIN_V4_INLINE void store16(float* p, __m512 values) { _mm512_storeu_ps(p, values); }

/// Rounded like to_bf16, except that a conversion by the processor takes denormals as 0.
LORA_TRAIN_V4_INLINE __m256i bf16_of(__m512 values) {
  if (kHasAvx512Bf16) {
    __m256i converted;
    asm("vcvtneps2bf16 %1, %0" : "=v"(converted) : "v"(values));  // as the intrinsic needs another target
    return converted;
  }
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), is_nan, _mm512_set1_epi32(0x7FC0));
  return _mm512_cvtepi32_epi16(rounded);
}

LORA_TRAIN_V4_INLINE void store16(Bf16* p, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_of(values));
}

LORA_TRAIN_V4_INLINE void masked_store16(float* p, __m512 values, __mmask16 lanes) {
  _mm512_mask_storeu_ps(p, lanes, values);
}
LORA_TRAIN_V4_INLINE void masked_store16(Bf16* p, __m512 values, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(p, lanes, bf16_of(values));
}

/// 2^x to 2 ulp; 0 below 2^-100, because denormals are slow. NaN for NaN.
LORA_TRAIN_V4_INLINE __m512 exp2_16(__m512 x) {
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-100.0F), _CMP_NLT_UQ);
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(1.86713075e-3F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.01702885e-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.57999127e-2F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40164444e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93151295e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_maskz_scalef_ps(is_normal, p, x);
}

/// A 16 x 16 block of words, transposed in four rounds of exchanges.
LORA_TRAIN_V4_INLINE void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

}  // namespace lora_train::kernels
#endif
