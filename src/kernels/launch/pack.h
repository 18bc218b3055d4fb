// Vectorised memory accesses for CUDA kernels: 16 bytes per access if the rows are aligned, else one element. No torch.
#pragma once

#include <cstdint>

#include "bf16.h"
#include "rows.h"

namespace lora_train::kernels {

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
  } else {
    *reinterpret_cast<Pack<T, kSize>*>(p) = pack;
  }
#else
  *reinterpret_cast<Pack<T, kSize>*>(p) = pack;
#endif
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

/// True if every row of `width` elements, `begin` columns into `rows`, can be accessed in packs of 16 bytes. Checks the address
/// only, and never reads the data.
template <class T>
bool fits_packs(Rows<T> rows, std::int64_t width, std::int64_t begin = 0) {
  const std::uintptr_t address =
      reinterpret_cast<std::uintptr_t>(rows.data) + static_cast<std::uintptr_t>(begin) * sizeof(T);
  return address % 16 == 0 && rows.stride % kFullPack<T> == 0 && width % kFullPack<T> == 0;
}

/// The block size for a row of `packs`: a multiple of 32 between 32 and `most`.
inline unsigned threads_for(std::int64_t packs, unsigned most) {
  const std::int64_t rounded = (packs + 31) / 32 * 32;
  return rounded < 32 ? 32U : rounded > most ? most : static_cast<unsigned>(rounded);
}

/// The same for threads that take packs in turns: as few threads as make no more turns, so that all take nearly as many.
inline unsigned even_threads_for(std::int64_t packs, unsigned most) {
  const std::int64_t turns = (packs + most - 1) / most;
  return threads_for(turns == 0 ? 0 : (packs + turns - 1) / turns, most);
}

}  // namespace lora_train::kernels
