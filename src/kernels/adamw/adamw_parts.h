// Gradient norm and AdamW on a GPU in stream order: pointers are device memory; StepScalar indexes `scalars`. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch/elements.h"
#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::kernels {

/// The number of partial sums for the norm of n elements: at most one per thread of the block that adds them.
constexpr std::int64_t kMaxNormPartials = 1024;
constexpr std::int64_t num_norm_partials(std::int64_t n) {
  constexpr std::int64_t kElements = 4096;
  return n <= kElements ? 1 : n >= kElements * kMaxNormPartials ? kMaxNormPartials : (n + kElements - 1) / kElements;
}

/// Writes kGradNorm and kClipFactor of grads [n] to scalars, and kNonFinite = 1 if the norm or scalars[kLossSum] is not
/// finite. partials [num_norm_partials(n)]: workspace.
void measure_gradients_cuda(const float* grads, std::int64_t n, double max_norm, double* partials, double* scalars,
                            Stream stream);

/// Updates one parameter block: all buffers [n]. lr_factor multiplies the learning rate. Writes nothing if
/// scalars[kNonFinite] is not 0.
void adamw_step_cuda(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n,
                     AdamWOptions options, double lr_factor, const double* scalars, Stream stream);

// 8-bit moments.

/// CUDA blocks of the update, each with a partial count of zeroed moments: at most one per thread of the block that
/// adds them.
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
