// The gated delta rule: linear attention whose state decays, and forgets what a key held before it takes the new value.
// N tokens, Hk key heads, Hv value heads (a multiple of Hk), dk and dv their sizes, S rows of states. Value head h
// reads key head h / (Hv / Hk). Source: arXiv 2412.06464; transformers modeling_qwen3_5.py
// (torch_chunk_gated_delta_rule).
//
// Per value head, with the state M [dk, dv], zero at the start of a sequence:
//   q = l2norm(q) / sqrt(dk), k = l2norm(k), l2norm(x) = x / sqrt(sum of squares + 1e-6)
//   beta = sigmoid(b), g = -exp(A_log) softplus(a + dt_bias)
//   P = e^g M;  u = beta (v - P^T k);  M = P + k u^T;  o = M^T q
#pragma once

#include <ATen/core/Tensor.h>

#include "lora_train/kernels/gated_delta/gated_delta_sizes.h"
#include "lora_train/kernels/sequences.h"

namespace lora_train::kernels {

struct GatedDeltaInputs {
  at::Tensor qkv;      ///< [N, 2 Hk dk + Hv dv] fp32, bf16 or fp64: all heads of q, then of k, then of v
  at::Tensor a, b;     ///< [N, Hv], dtype of qkv
  at::Tensor a_log;    ///< [Hv] fp32 (fp64)
  at::Tensor dt_bias;  ///< [Hv] fp32 (fp64)
};

/// Where the backward writes: qkv, a and b overwritten, in the shapes and dtype of the inputs; a_log and dt_bias fp32
/// (fp64), accumulated into, or undefined.
struct GatedDeltaGradients {
  at::Tensor qkv, a, b, a_log, dt_bias;
};

/// out [N, Hv dv], dtype of qkv. Everything inside is fp32 (fp64); rows of all matrices may be strided. state [S, Hv,
/// dk, dv] fp32 (fp64) or undefined: M of a sequence, used if sequences.state_rows is defined. scratch [N,
/// gated_delta_scratch_width()], dtype of qkv, contiguous; not used by the reference.
void gated_delta_forward(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs, const Sequences& sequences,
                         at::Tensor& state, at::Tensor& scratch, at::Tensor& out);

/// The gradients, of sequences without states; repeats the forward, whose states it keeps in `scratch`. d_out [N, Hv
/// dv] like out. Sums have a fixed order.
void gated_delta_backward(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs, const Sequences& sequences,
                          const at::Tensor& d_out, at::Tensor& scratch, GatedDeltaGradients& gradients);

/// The same token by token in plain ATen code: obvious but slow, on any device.
decltype(gated_delta_forward) gated_delta_forward_reference;
decltype(gated_delta_backward) gated_delta_backward_reference;

}  // namespace lora_train::kernels
