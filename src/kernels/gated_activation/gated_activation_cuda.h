// Contracts in gated_activation_cpu.h, on a GPU in stream order: pointers are device memory. T is float or Bf16. No torch
// here.
#pragma once

#include <cstdint>

#include "launch/rows.h"
#include "lora_train/kernels/gated_activation/activation.h"

namespace lora_train::kernels {

template <class T>
void gated_activation_forward_cuda(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                                   Activation activation, Stream stream);

template <class T>
void gated_activation_backward_cuda(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                    std::int64_t F, Activation activation, Stream stream);

}  // namespace lora_train::kernels
