// The loop of adamw_step on a CPU. No torch.
#pragma once

#include <cstdint>

#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::optim {

/// Elements [0, n).
void adamw_range_cpu(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n,
                     const kernels::AdamWFactors& factors);

}  // namespace lora_train::optim
