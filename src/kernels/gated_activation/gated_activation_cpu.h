// Contracts in gated_activation.h; T is float or Bf16, Function is one of activation_functions.h. Rows of gate_up hold F
// gates, then F ups.
#pragma once

#include "activation_functions.h"
#include "launch/rows.h"

namespace lora_train::kernels {

template <class Function, class T>
void gated_activation_forward_cpu(Rows<const T> gate_up, Rows<T> y, std::int64_t num_rows, std::int64_t F);

template <class Function, class T>
void gated_activation_backward_cpu(Rows<const T> dy, Rows<const T> gate_up, Rows<T> d_gate_up, std::int64_t num_rows,
                                   std::int64_t F);

}  // namespace lora_train::kernels
