// The loop of adamw_step on a CPU. No torch here.
#pragma once

#include <cstdint>

namespace lora_train::optim {

/// What one step has in common for all elements, rounded to fp32 as PyTorch rounds its scalars.
struct AdamWFactors {
  float grad_scale, one_minus_beta1, beta2, one_minus_beta2, correction2_sqrt, epsilon, minus_step_size;
};

/// Elements [0, n); params are multiplied by `decay` first.
void adamw_range_cpu(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n, float decay,
                     const AdamWFactors& factors);

}  // namespace lora_train::optim
