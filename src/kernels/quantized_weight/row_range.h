#pragma once

#include "lora_train/kernels/quantized_weight/quantized_weight.h"

namespace lora_train::kernels {

/// Codes and scales of `count` rows from `begin` on, multiples of row_multiple, as views.
struct RowRange {
  at::Tensor codes, scales;
};
RowRange range_of(QuantizedWeight& weight, std::int64_t begin, std::int64_t count);

}  // namespace lora_train::kernels
