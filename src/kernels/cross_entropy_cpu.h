// Contract as cross_entropy.h; T is float or Bf16. correct, confidence and num_tokens may be null.
#pragma once

#include "rows.h"

namespace lora_train::kernels {

template <class T>
void cross_entropy_in_place_cpu(Rows<T> logits, const std::int32_t* targets, const double* num_tokens,
                                float* losses, bool* correct, float* confidence, std::int64_t num_rows, std::int64_t V);

}  // namespace lora_train::kernels
