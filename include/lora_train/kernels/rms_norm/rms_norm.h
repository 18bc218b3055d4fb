// Root-mean-square norm over the last dimension, and its gradient. N rows, D features.
// Source: pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html. Rounds as LlamaRMSNorm and Gemma3RMSNorm of
// transformers.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// y = x / rms(x) * (weight_offset + weight) (+ residual), statistics in fp32.
/// x [N, D] fp32, bf16 or fp64, rows may be strided (last dimension contiguous). weight [D], dtype of x. eps > 0.
/// y [N, D] like x, rows may be strided; may not alias x. rstd [N] fp32 (fp64 for fp64), needed by the backward.
/// weight_offset 0: x / rms(x) is rounded to the dtype of x and then multiplied by weight, as in Llama. Any other value
/// (Gemma has 1): everything is computed in fp32 and rounded once.
/// residual [N, D] like x, rows may be strided, may be y; or undefined. The norm of a block's output (Gemma 3) is added
/// to it in the same pass, rounded to the dtype of x before, as transformers does. Its gradient is dy.
void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& y, at::Tensor& rstd,
                      double weight_offset = 0, const at::Tensor& residual = {});

/// dx = d(loss)/dx of rms_norm_forward, or with `accumulate` dx += that.
/// dy [N, D] like x; without `accumulate`, dx may be dy. dweight [D] fp32, accumulated into, or null or undefined.
/// weight_offset as in the forward.
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       at::Tensor& dx, bool accumulate, at::Tensor* dweight, double weight_offset = 0);

/// The same in plain ATen code: obvious but slow, on any device.
decltype(rms_norm_forward) rms_norm_forward_reference;
decltype(rms_norm_backward) rms_norm_backward_reference;

}  // namespace lora_train::kernels
