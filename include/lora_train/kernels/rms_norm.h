// Root-mean-square norm over the last dimension, and its gradient. N rows, D features.
// Source: pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html; rounding order of transformers (cast, then times weight).
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// y = x / rms(x) * weight, statistics in fp32.
/// x [N, D] fp32, bf16 or fp64, rows may be strided (last dimension contiguous). weight [D], dtype of x. eps > 0.
/// y [N, D] like x, rows may be strided; may not alias x. rstd [N] fp32 (fp64 for fp64), needed by the backward.
void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& y, at::Tensor& rstd);

/// dx = d(loss)/dx of rms_norm_forward, added to what dx holds when `accumulate`, else written.
/// dy [N, D] like x; without `accumulate` dx may be dy. dweight [D] fp32 or undefined: when defined the weight gradient is
/// added to it.
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       at::Tensor& dx, bool accumulate, at::Tensor* dweight);

/// The same in device-agnostic ATen code: obvious, any device, not fast.
void rms_norm_forward_reference(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& y, at::Tensor& rstd);
void rms_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& rstd, at::Tensor& dx, bool accumulate, at::Tensor* dweight);

}  // namespace lora_train::kernels
