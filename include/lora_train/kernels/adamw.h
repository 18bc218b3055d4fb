// The optimizer's part of our CUDA kernels, and the scalars of a step that lie in device memory. Checks, the code of the
// CPU and the references are in module optim, which alone calls the functions below.
#pragma once

#include <cstdint>
#include <span>

#include "lora_train/kernels/parameter_block.h"

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// Places in the fp64 tensor of a step's scalars (optim/step_scalars.h).
enum StepScalar : std::int64_t {
  kLossSum,          ///< weighted sum of the token losses of the step so far
  kLossDenominator,  ///< sum of the weights of the step's supervised tokens
  kLearningRate,
  kBeta1Correction,  ///< 1 - beta1^step
  kBeta2Correction,  ///< 1 - beta2^step
  kGradNorm,         ///< before clipping
  kClipFactor,       ///< what gradients are multiplied by
  kNonFinite,        ///< 1 once a loss sum or a norm was not finite, from then on; else 0
  kNumStepScalars
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
};

/// Contracts as measure_gradients and adamw_step of module optim; only where implementation_for said kCuda.
void own_measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars);
void own_adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                    const AdamWOptions& options, std::span<const ParameterBlock> blocks, const at::Tensor& scalars);

}  // namespace lora_train::kernels
