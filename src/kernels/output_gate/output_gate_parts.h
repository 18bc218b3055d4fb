// Contracts in output_gate.h; T is float or Bf16. On a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

template <class T>
void output_gate_forward_cpu(Rows<const T> x, Rows<const T> gate, Rows<T> y, std::int64_t num_rows, std::int64_t F);

template <class T>
void output_gate_backward_cpu(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, Rows<T> dx, Rows<T> d_gate,
                              std::int64_t num_rows, std::int64_t F);

template <class T>
void output_gate_forward_cuda(Rows<const T> x, Rows<const T> gate, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                              Stream stream);

template <class T>
void output_gate_backward_cuda(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, Rows<T> dx, Rows<T> d_gate,
                               std::int64_t num_rows, std::int64_t F, Stream stream);

}  // namespace lora_train::kernels
