// Contract in dropout_cpu.h, on a GPU in stream order: pointers are device memory, including key. T is float or Bf16. No torch.
#pragma once

#include <cstdint>

#include "launch/rows.h"
#include "lora_train/base/philox.h"

namespace lora_train::kernels {

template <class T>
void dropout_forward_cuda(Rows<const T> x, const std::int32_t* token_document, const std::int32_t* token_position,
                          const PhiloxKey* key, std::uint32_t threshold, float factor, Rows<T> y,
                          std::int64_t num_tokens, std::int64_t D, Stream stream);

}  // namespace lora_train::kernels
