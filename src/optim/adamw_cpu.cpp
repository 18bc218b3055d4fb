// Keeps the order of operations of torch's single-tensor AdamW and contracts nothing (-ffp-contract=off), so that the bits are
// the same on every CPU.
#include "adamw_cpu.h"

#include <cmath>

#include "lora_train/kernels/launch/cpu_clones.h"

namespace lora_train::optim {

LORA_TRAIN_CLONES void adamw_range_cpu(float* params, const float* grads, float* exp_avg, float* exp_avg_sq,
                                       std::int64_t n, const kernels::AdamWFactors& factors) {
  const kernels::AdamWFactors f = factors;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grads[i] * f.grad_scale;
    const float m = exp_avg[i] + f.one_minus_beta1 * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * f.beta2 + f.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v) / f.correction2_sqrt + f.epsilon;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    params[i] = params[i] * f.decay + f.minus_step_size * m / denominator;
  }
}

}  // namespace lora_train::optim
