// Contract in dropout.h; T is float or Bf16. On a GPU in stream order: pointers are device memory, also key. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"
#include "lora_train/base/philox.h"

namespace lora_train::kernels {

/// An element is kept if its 24-bit uniform is at least `threshold`. `factor` is 1 / (1 - p).
LORA_TRAIN_CPU_AND_CUDA(dropout_forward, Rows<const T> x, const std::int32_t* token_document,
                        const std::int32_t* token_position, const PhiloxKey* key, std::uint32_t threshold, float factor,
                        Rows<T> y, std::int64_t num_tokens, std::int64_t D);

}  // namespace lora_train::kernels
