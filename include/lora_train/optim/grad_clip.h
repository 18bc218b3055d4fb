// Gradient norm and clipping factor, as torch.nn.utils.clip_grad_norm_.
#pragma once

#include <ATen/core/Tensor.h>

#include "lora_train/optim/step_scalars.h"

namespace lora_train::optim {

/// Writes to `scalars` (step_scalars.h): kGradNorm, the 2-norm of a flat contiguous fp32 (fp64) buffer [n], summed in fp64 in a
/// fixed order; kClipFactor = min(1, max_norm / (norm + 1e-6)), 1 when max_norm is 0 (off); and kNonFinite = 1 when the norm
/// or kLossSum is not finite. Runs on the device of grads and scalars, without waiting for it.
void measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars);

/// The same in plain ATen operations, any device.
void measure_gradients_reference(const at::Tensor& grads, double max_norm, at::Tensor& scalars);

}  // namespace lora_train::optim
