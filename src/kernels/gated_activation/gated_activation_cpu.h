// Contracts in gated_activation.h; T is float or Bf16. Rows of gate_up hold F gate values, then F up values.
#pragma once

#include "launch/rows.h"
#include "lora_train/kernels/gated_activation/activation.h"

namespace lora_train::kernels {

template <class T>
void gated_activation_forward_cpu(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F,
                                  Activation activation);

/// d_gate_up may be gate_up.
template <class T>
void gated_activation_backward_cpu(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                   std::int64_t F, Activation activation);

}  // namespace lora_train::kernels
