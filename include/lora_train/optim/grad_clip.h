// Gradient norm and clipping factor, as torch.nn.utils.clip_grad_norm_.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::optim {

/// 2-norm of a flat fp32 buffer [n], summed in fp64, the same bits for the same thread count. Non-finite in, non-finite out.
double grad_norm(const at::Tensor& grads);

/// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0 (off).
double clip_factor(double norm, double max_norm);

}  // namespace lora_train::optim
