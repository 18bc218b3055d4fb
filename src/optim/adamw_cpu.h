// The loops of adamw_step and adamw_8bit_step on a CPU. No torch.
#pragma once

#include <cstdint>

#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::optim {

/// Elements [0, n).
void adamw_range_cpu(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n,
                     const kernels::AdamWFactors& factors);

/// Blocks [first, last) of the table. `groups` holds the factors of each group. Returns the number of second moments
/// above 0 that got the code of 0.
std::int64_t adamw_8bit_blocks_cpu(const kernels::AdamW8bitBuffers& buffers, const kernels::AdamW8bitFactors* groups,
                                   std::int64_t first, std::int64_t last);

}  // namespace lora_train::optim
