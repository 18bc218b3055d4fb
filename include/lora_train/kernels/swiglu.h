// SwiGLU: y = silu(gate) * up. N tokens, F features. Source: arXiv 2002.05202.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// gate_up [N, 2F], gate first, contiguous. y [N, F], rows may be strided. fp32, bf16 or fp64; math in fp32 (fp64).
void swiglu_forward(const at::Tensor& gate_up, at::Tensor& y);

/// d_gate_up [N, 2F] is written; it may be gate_up itself. dy [N, F], rows may be strided.
void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up);

void swiglu_forward_reference(const at::Tensor& gate_up, at::Tensor& y);
void swiglu_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor& d_gate_up);

}  // namespace lora_train::kernels
