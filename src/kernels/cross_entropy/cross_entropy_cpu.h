// Contract in cross_entropy.h; T is float or Bf16. weights, denominator, correct and confidence may be null.
#pragma once

#include "launch/rows.h"

namespace lora_train::kernels {

template <class T>
void cross_entropy_in_place_cpu(Rows<T> logits, const std::int32_t* targets, const float* weights,
                                const double* denominator, float* losses, bool* correct, float* confidence,
                                std::int64_t num_rows, std::int64_t V);

}  // namespace lora_train::kernels
