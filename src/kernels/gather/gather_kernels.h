// Contracts in gather.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

template <class T>
void gather_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                      std::int64_t num_rows, std::int64_t D, Stream stream);

template <class T>
void scatter_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                       std::int64_t num_rows, std::int64_t D, Stream stream);

/// weights and picked_weights may both be null.
void take_next_cuda(const std::int64_t* rows, const std::int32_t* targets, const float* weights, std::int64_t* next,
                    std::int64_t* picked_rows, std::int32_t* picked_targets, float* picked_weights, std::int64_t count,
                    Stream stream);

}  // namespace lora_train::kernels
