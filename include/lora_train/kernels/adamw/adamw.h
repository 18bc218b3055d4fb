// The optimizer's native CUDA kernels, and the scalars of a step, which lie in device memory. Module optim has the checks, the
// CPU code and the references, and is the only caller of the functions below.
#pragma once

#include <cstdint>
#include <span>

#include "lora_train/kernels/adamw/parameter_block.h"

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// Indices into the fp64 tensor of a step's scalars (optim/adam_scalars.h).
enum StepScalar : std::int64_t {
  kLossSum,          ///< weighted sum of the token losses so far in this step
  kLossDenominator,  ///< sum of the weights of the step's supervised tokens
  kLearningRate,
  kBeta1Correction,  ///< 1 - beta1^step
  kBeta2Correction,  ///< 1 - beta2^step
  kGradNorm,         ///< before clipping
  kClipFactor,       ///< multiplies the gradients
  kNonFinite,        ///< sticky: 1 once a loss sum or norm was not finite, else 0
  kZeroedMoments,    ///< adamw_8bit: the share of 8-bit second moments that were above 0 and have the code of 0
  kNumStepScalars
};

struct AdamWOptions {
  double beta1, beta2, epsilon, weight_decay;
};

/// What one step has in common for all elements of a block, computed in fp64 and rounded to fp32 as PyTorch rounds its
/// scalars. Parameters are multiplied by `decay` first.
struct AdamWFactors {
  float grad_scale, one_minus_beta1, beta2, one_minus_beta2, correction2_sqrt, epsilon, minus_step_size, decay;
};

/// Contracts: measure_gradients and adamw_step in module optim. Call them only after implementation_for returned kCuda.
void native_measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars);
void native_adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                       const AdamWOptions& options, std::span<const ParameterBlock> blocks, const at::Tensor& scalars);

}  // namespace lora_train::kernels
