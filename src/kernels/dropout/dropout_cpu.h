// Contract in dropout.h; T is float or Bf16.
#pragma once

#include "launch/rows.h"
#include "lora_train/base/philox.h"

namespace lora_train::kernels {

/// An element is kept if its 24-bit uniform is at least `threshold`. `factor` is 1 / (1 - p).
template <class T>
void dropout_forward_cpu(Rows<const T> x, const std::int32_t* token_document, const std::int32_t* token_position,
                         const PhiloxKey* key, std::uint32_t threshold, float factor, Rows<T> y,
                         std::int64_t num_tokens, std::int64_t D);

}  // namespace lora_train::kernels
