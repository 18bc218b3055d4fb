// gated_activation.h with silu.
#pragma once

#include "lora_train/kernels/gated_activation.h"

namespace lora_train::kernels {

inline void swiglu_forward(const at::Tensor& gate_up, at::Tensor& y) { gated_activation_forward(gate_up, y); }
inline void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up) {
  gated_activation_backward(dy, gate_up, d_gate_up);
}

}  // namespace lora_train::kernels
