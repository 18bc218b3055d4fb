// Gradient norm and clip factor, as in torch.nn.utils.clip_grad_norm_.
#pragma once

#include <ATen/core/Tensor.h>

#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

/// Writes to `scalars` (kernels/adamw/adamw.h): kGradNorm, the 2-norm of the flat contiguous fp32 (fp64) buffer grads
/// [n], summed in fp64 in a fixed order; kClipFactor = min(1, max_norm / (norm + 1e-6)), or 1 if max_norm is 0 (off);
/// and kNonFinite = 1 if the norm or kLossSum is not finite. Runs on the device of grads and scalars, without
/// synchronizing.
void measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars);

/// The same in plain ATen operations, any device.
void measure_gradients_reference(const at::Tensor& grads, double max_norm, at::Tensor& scalars);

}  // namespace lora_train::optim
