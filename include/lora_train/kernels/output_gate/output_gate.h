// The gate on the output of attention: y = x * sigmoid(gate). N tokens, F features. Source: transformers
// modeling_qwen3_5.py (Qwen3_5Attention).
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// x, gate and y [N, F] fp32, bf16 or fp64, rows may be strided; y may be x. The sigmoid is rounded to the dtype of x, as
/// in transformers; the rest is fp32 (fp64).
void output_gate_forward(const at::Tensor& x, const at::Tensor& gate, at::Tensor& y);

/// dy, dx and d_gate [N, F] like x; dx may be dy, d_gate may be gate. dx has the rounded sigmoid, d_gate the exact one.
void output_gate_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate, at::Tensor& dx,
                          at::Tensor& d_gate);

/// The same in plain ATen code: obvious but slow, on any device.
decltype(output_gate_forward) output_gate_forward_reference;
decltype(output_gate_backward) output_gate_backward_reference;

}  // namespace lora_train::kernels
