// AdamW as torch.optim.AdamW: decoupled weight decay before the update, eps outside the root, bias correction.
// Source: arXiv 1711.05101; pytorch.org/docs/stable/generated/torch.optim.AdamW.html
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lora_train/kernels/parameter_block.h"
#include "lora_train/optim/step_scalars.h"

namespace lora_train::optim {

/// One fused pass over flat buffers. params, grads, exp_avg, exp_avg_sq: [n] fp32 (fp64), contiguous.
/// scalars: step_scalars.h; read are kLearningRate, kBeta1Correction, kBeta2Correction, kClipFactor and kNonFinite: when
/// that is set, nothing is written. `blocks` cover the buffers in order, each with the learning rate times its lr_factor, with
/// weight decay or without. Gradients are multiplied by kClipFactor first and left as they are. Buffers of length 0 (no
/// block) are fine. On the device of the tensors, without waiting for it.
void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                const at::Tensor& scalars);

/// The same in plain ATen operations, several passes, any device.
void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                          const at::Tensor& scalars);

}  // namespace lora_train::optim
