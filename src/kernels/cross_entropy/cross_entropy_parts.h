// Contract in cross_entropy.h; T is float or Bf16. weights, denominator, correct and confidence may be null. On a GPU
// in stream order: pointers are device memory, including denominator. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"

namespace lora_train::kernels {

LORA_TRAIN_CPU_AND_CUDA(cross_entropy_in_place, Rows<T> logits, const std::int32_t* targets, const float* weights,
                        const double* denominator, float* losses, bool* correct, float* confidence,
                        std::int64_t num_rows, std::int64_t V);

/// *sum += sum(weights * losses), each [num_rows], in fp64, in an order that depends only on num_rows. Null weights: 1.
void add_losses_cuda(const float* losses, const float* weights, std::int64_t num_rows, double* sum, Stream stream);

}  // namespace lora_train::kernels
