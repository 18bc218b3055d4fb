// AdamW with 8-bit moments on a GPU in stream order: pointers are device memory, `scalars` is indexed by StepScalar. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch/rows.h"
#include "lora_train/kernels/adamw/adamw_8bit.h"

namespace lora_train::kernels {

/// CUDA blocks of the update, each with a partial count of zeroed moments: at most one per thread of the block that adds them.
constexpr std::int64_t kMaxAdamW8bitPartials = 1024;
constexpr std::int64_t num_adamw_8bit_partials(std::int64_t num_blocks) {
  constexpr std::int64_t kWarps = 8;
  return std::min(kMaxAdamW8bitPartials, (num_blocks + kWarps - 1) / kWarps);
}

/// Updates all parameters and writes kZeroedMoments, or nothing if scalars[kNonFinite] is not 0. num_moments: as in
/// native_adamw_8bit_step. zeroed [num_adamw_8bit_partials(num_blocks)]: workspace.
void adamw_8bit_step_cuda(const AdamW8bitBuffers& buffers, const AdamW8bitGroups& groups, const AdamWOptions& options,
                          std::int64_t num_moments, double* zeroed, double* scalars, Stream stream);

}  // namespace lora_train::kernels
