// AdamW with moments of 8 bits, as bitsandbytes' CUDA kernel computes it (kOptimizerStatic8bit2StateBlockwise; arXiv
// 2110.02861): the update works on the unquantised new moments, weight decay multiplies after it, and the sign of the first
// moment survives coding. bitsandbytes skips gradients that are not finite; here kNonFinite stops the whole update.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lora_train/kernels/adamw/adamw_8bit.h"
#include "lora_train/kernels/adamw/parameter_block.h"
#include "lora_train/optim/adam_scalars.h"

namespace lora_train::optim {

/// Whether the moments of a tensor are coded. Those of embeddings and of tensors with fewer than 4096 elements stay fp32.
bool is_coded(const kernels::ParameterBlock& block);

/// How many blocks of 256 elements the tensors have whose moments are coded, and the others.
int64_t num_coded_blocks(std::span<const kernels::ParameterBlock> blocks);
int64_t num_fp32_blocks(std::span<const kernels::ParameterBlock> blocks);

/// The table of these blocks [num_coded + num_fp32, sizeof(MomentBlock)] bytes, on the CPU.
at::Tensor moment_blocks(std::span<const kernels::ParameterBlock> blocks);

/// Flat state for C coded and F other blocks, zero before step 1. Moments of 256 elements a block; in the last block of a
/// tensor, elements that it does not have are zeros.
struct AdamW8bitState {
  at::Tensor exp_avg_codes, exp_avg_scales;        ///< [256 C] uint8 of the signed dynamic map, [C] fp32
  at::Tensor exp_avg_sq_codes, exp_avg_sq_scales;  ///< the same of the unsigned map
  at::Tensor exp_avg, exp_avg_sq;                  ///< [256 F] fp32
  at::Tensor blocks;                               ///< moment_blocks(), on the device
};

/// One fused pass, with the contract of adamw_step (adamw.h), for fp32 buffers. Writes kZeroedMoments, too.
/// Throws ShapeError if tensors differ in more than AdamW8bitGroups::kMax ways.
void adamw_8bit_step(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state, const AdamWOptions& options,
                     std::span<const kernels::ParameterBlock> blocks, at::Tensor& scalars);

/// The same in plain ATen operations, tensor by tensor, any device.
void adamw_8bit_step_reference(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state,
                               const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                               at::Tensor& scalars);

}  // namespace lora_train::optim
