// Arguments of kernels on CPU and GPU: a strided matrix view, and a stream. No torch here.
#pragma once

#include <cstdint>

#include "bf16.h"

namespace lora_train::kernels {

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

}  // namespace lora_train::kernels
