// Causal convolution over the tokens of each sequence, one filter per channel, followed by silu. N tokens, C channels,
// T taps, S rows of states. Source: transformers modeling_qwen3_5.py (causal_conv1d_fn); arXiv 2412.06464.
#pragma once

#include <ATen/core/Tensor.h>

#include "lora_train/kernels/sequences.h"

namespace lora_train::kernels {

/// y[n, c] = silu(sum over j < T of weight[c, j] x[n - T + 1 + j, c]); inputs before the start of a sequence are zero,
/// or those of its state. x [N, C] fp32, bf16 or fp64, rows may be strided. weight [C, T], dtype of x, T from 1 to 8. y
/// [N, C] like x; may not alias it. Sums in fp32 (fp64), rounded once. state [S, C, T - 1], dtype of x, or undefined:
/// the last T - 1 inputs of a sequence, the newest last; used if sequences.state_rows is defined.
void causal_conv_forward(const at::Tensor& x, const at::Tensor& weight, const Sequences& sequences, at::Tensor& state,
                         at::Tensor& y);

/// The gradients, of sequences without states. dy [N, C] like y; dx [N, C] like x, may be neither dy nor x. dweight [C,
/// T] fp32 (fp64), accumulated into, or undefined. Sums have a fixed order.
void causal_conv_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                          const Sequences& sequences, at::Tensor& dx, at::Tensor& dweight);

/// The same in plain ATen code: obvious but slow, on any device.
decltype(causal_conv_forward) causal_conv_forward_reference;
decltype(causal_conv_backward) causal_conv_backward_reference;

}  // namespace lora_train::kernels
