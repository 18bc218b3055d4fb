// Contracts as gather.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch here.
#pragma once

#include <cstdint>

#include "launch_stream.h"
#include "rows.h"

namespace lora_train::kernels {

template <class T>
void gather_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked, std::int64_t D,
                      Stream stream);

/// Writes every one of the num_rows rows of `to`. rows: ascending, distinct.
template <class T>
void scatter_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                       std::int64_t num_rows, std::int64_t D, Stream stream);

}  // namespace lora_train::kernels
