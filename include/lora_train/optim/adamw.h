// AdamW, as torch.optim.AdamW computes it: decoupled weight decay before the update, eps outside the root, bias correction.
// Source: arXiv 1711.05101; pytorch.org/docs/stable/generated/torch.optim.AdamW.html
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lora_train/kernels/adamw/parameter_block.h"
#include "lora_train/optim/adam_scalars.h"

namespace lora_train::optim {

/// One fused pass over flat buffers. params, grads, exp_avg, exp_avg_sq: [n] fp32 (fp64), contiguous.
/// scalars (step_scalars.h): reads kLearningRate, kBeta1Correction, kBeta2Correction, kClipFactor and kNonFinite. Writes nothing
/// if kNonFinite is set. `blocks` cover the buffers in order; each sets the factor of the learning rate, and whether weight decay
/// applies. Multiplies gradients by kClipFactor on the fly, without changing the buffer. Buffers may be empty (no block). Runs
/// on the device of the tensors, without synchronizing.
void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                const at::Tensor& scalars);

/// The same in plain ATen operations, several passes, any device.
void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                          const at::Tensor& scalars);

}  // namespace lora_train::optim
