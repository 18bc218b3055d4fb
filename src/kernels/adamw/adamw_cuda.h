// Gradient norm and AdamW on a GPU in stream order: pointers are device memory, `scalars` those of StepScalar. No torch
// here.
#pragma once

#include <cstdint>

#include "launch/rows.h"
#include "lora_train/kernels/adamw.h"

namespace lora_train::kernels {

/// Partial sums of the norm of n elements; as many as the block that adds them has threads at most.
constexpr std::int64_t kMostNormPartials = 1024;
constexpr std::int64_t num_norm_partials(std::int64_t n) {
  constexpr std::int64_t kElements = 4096;
  return n <= kElements ? 1 : n >= kElements * kMostNormPartials ? kMostNormPartials : (n + kElements - 1) / kElements;
}

/// scalars[kGradNorm, kClipFactor] of grads [n], partials [num_norm_partials(n)]; scalars[kNonFinite] = 1 where norm or
/// scalars[kLossSum] is not finite.
void measure_gradients_cuda(const float* grads, std::int64_t n, double max_norm, double* partials, double* scalars,
                            Stream stream);

/// One block: all buffers [n], lr_factor multiplies the learning rate. Writes nothing when scalars[kNonFinite] is not 0.
void adamw_step_cuda(float* params, const float* grads, float* exp_avg, float* exp_avg_sq, std::int64_t n,
                     AdamWOptions options, double lr_factor, const double* scalars, Stream stream);

}  // namespace lora_train::kernels
