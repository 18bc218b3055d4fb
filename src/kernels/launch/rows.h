// A matrix as kernels see it: rows of contiguous elements, `stride` elements apart.
#pragma once

#include <cstdint>

#include "bf16.h"

namespace lora_train::kernels {

template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  LORA_TRAIN_INLINE T* operator[](std::int64_t row) const { return data + row * stride; }
};

/// Rows per thread below which starting threads costs more than it gains.
inline std::int64_t row_grain(std::int64_t row_elements) {
  constexpr std::int64_t kElements = 16384;
  return row_elements >= kElements ? 1 : (kElements + row_elements) / (row_elements + 1);
}

}  // namespace lora_train::kernels
