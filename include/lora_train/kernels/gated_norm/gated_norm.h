// Root-mean-square norm over each head, times silu of a gate (the output norm of a gated delta net). N tokens, H heads,
// E head size. Source: transformers modeling_qwen3_5.py (Qwen3_5RMSNormGated).
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// y = round(weight * round(x / rms(x))) * silu(gate), computed in fp32 (fp64) except for the rounding to the dtype of
/// x that transformers does. x, gate and y [N, H E] fp32, bf16 or fp64, rows may be strided; weight [E], dtype of x,
/// the same for all heads. y may be x. eps > 0.
void gated_norm_forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        at::Tensor& y);

/// dy, dx and d_gate [N, H E] like x; dx may be dy. dweight [E] fp32 (fp64), accumulated into, or undefined. Sums have
/// a fixed order.
void gated_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                         double eps, at::Tensor& dx, at::Tensor& d_gate, at::Tensor& dweight);

/// The same in plain ATen code: obvious but slow, on any device.
decltype(gated_norm_forward) gated_norm_forward_reference;
decltype(gated_norm_backward) gated_norm_backward_reference;

}  // namespace lora_train::kernels
