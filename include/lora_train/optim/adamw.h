// AdamW as torch.optim.AdamW: decoupled weight decay before the update, eps outside the root, bias correction.
// Source: arXiv 1711.05101; pytorch.org/docs/stable/generated/torch.optim.AdamW.html
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lora_train/kernels/parameter_block.h"
#include "lora_train/optim/step_scalars.h"

namespace lora_train::optim {

/// One fused pass over flat buffers. params, grads, exp_avg, exp_avg_sq: [n] fp32 (fp64), contiguous.
/// scalars: step_scalars.h; reads kLearningRate, kBeta1Correction, kBeta2Correction, kClipFactor and kNonFinite. When the last
/// is set, nothing is written. `blocks` cover the buffers in order, each with the learning rate times its lr_factor, with or
/// without weight decay. Uses gradients times kClipFactor, without changing them. Buffers may be empty (no block). Runs on the
/// device of the tensors, without waiting for it.
void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                const at::Tensor& scalars);

/// The same in plain ATen operations, several passes, any device.
void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                          const at::Tensor& scalars);

}  // namespace lora_train::optim
