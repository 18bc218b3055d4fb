// The scalars of an optimizer step, and AdamW with moments in fp32 or 8 bits. The scalars are in device memory, so a
// step never waits for the host: an fp64 tensor [kNumStepScalars], contiguous, on the device of the parameters.
//
// Before a step, the host writes the first ones (first_scalars). The objective adds to kLossSum, measure_gradients
// writes the others, and the optimizer reads them. kNonFinite stays set until the host clears it; until then, no step
// updates anything.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::optim {

using kernels::AdamWOptions;
using enum kernels::StepScalar;

/// The trained tensors in the order of the flat buffers.
using ParameterBlocks = std::span<const kernels::ParameterBlock>;

/// The scalars that the host writes: kLossSum (0), kLossDenominator, kLearningRate, kBeta1Correction, kBeta2Correction.
constexpr std::int64_t kNumFirstScalars = kBeta2Correction + 1;

/// The scalars for optimizer step `step`, counted from 1. Throws ShapeError if `step` is below 1.
std::array<double, kNumFirstScalars> first_scalars(std::int64_t step, double loss_denominator, double learning_rate,
                                                   const AdamWOptions& options);

/// As torch.nn.utils.clip_grad_norm_. Writes kGradNorm, the 2-norm of the flat contiguous fp32 (fp64) buffer grads [n],
/// summed in fp64 in a fixed order; kClipFactor = min(1, max_norm / (norm + 1e-6)), or 1 if max_norm is 0 (off); and
/// kNonFinite = 1 if the norm or kLossSum is not finite. Runs on the device of grads, without synchronizing.
void measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars);

/// The same in plain ATen operations, any device.
void measure_gradients_reference(const at::Tensor& grads, double max_norm, at::Tensor& scalars);

// AdamW, as torch.optim.AdamW computes it: decoupled weight decay before the update, eps outside the root, bias
// correction. Source: arXiv 1711.05101; pytorch.org/docs/stable/generated/torch.optim.AdamW.html

/// One fused pass over flat buffers. params, grads, exp_avg, exp_avg_sq: [n] fp32 (fp64), contiguous.
/// scalars (kernels/adamw/adamw.h): reads kLearningRate, kBeta1Correction, kBeta2Correction, kClipFactor and
/// kNonFinite. Writes nothing if kNonFinite is set. `blocks` cover the buffers in order; each sets its learning-rate
/// factor and turns weight decay on or off. Multiplies gradients by kClipFactor on the fly, without changing the
/// buffer. Buffers may be empty (no block). Runs on the device of the tensors, without synchronizing.
void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                const AdamWOptions& options, ParameterBlocks blocks, const at::Tensor& scalars);

/// The same in plain ATen operations, several passes, any device.
decltype(adamw_step) adamw_step_reference;

// AdamW with 8-bit moments, as bitsandbytes' CUDA kernel computes it (kOptimizerStatic8bit2StateBlockwise; arXiv
// 2110.02861): the update works on the unquantised new moments, weight decay multiplies after it, and the sign of the
// first moment survives coding. bitsandbytes skips gradients that are not finite; here kNonFinite stops the whole
// update.

/// True if the moments of a tensor are coded. Moments of embeddings and of tensors with fewer than 4096 elements stay
/// fp32.
bool is_coded(const kernels::ParameterBlock& block);

/// The number of 256-element blocks in tensors with coded moments, and in the others.
int64_t num_coded_blocks(ParameterBlocks blocks);
int64_t num_fp32_blocks(ParameterBlocks blocks);

/// The table of these blocks [num_coded + num_fp32, sizeof(MomentBlock)] bytes, on the CPU.
at::Tensor moment_blocks(ParameterBlocks blocks);

/// Flat state for C coded and F other blocks, zero before step 1. Each block holds the moments of 256 elements; the
/// last block of a tensor is padded with zeros.
struct AdamW8bitState {
  at::Tensor exp_avg_codes, exp_avg_scales;        ///< [256 C] uint8 of the signed dynamic map, [C] fp32
  at::Tensor exp_avg_sq_codes, exp_avg_sq_scales;  ///< the same with the unsigned map
  at::Tensor exp_avg, exp_avg_sq;                  ///< [256 F] fp32
  at::Tensor blocks;                               ///< moment_blocks(), on the device
};

/// One fused pass, with the contract of adamw_step, for fp32 buffers. Also writes kZeroedMoments.
/// Throws ShapeError if tensors differ in more than AdamW8bitGroups::kMax ways.
void adamw_8bit_step(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state, const AdamWOptions& options,
                     ParameterBlocks blocks, at::Tensor& scalars);

/// The same in plain ATen operations, tensor by tensor, any device.
decltype(adamw_8bit_step) adamw_8bit_step_reference;

}  // namespace lora_train::optim
