// Contracts as lora.h; T is float or Bf16. Both compute thin^T big, C columns of big; grad_b wants it transposed.
#pragma once

#include "rows.h"

namespace lora_train::kernels {

template <class T>
void lora_grad_b_cpu(Rows<const T> dy, Rows<const T> s, float scale, Rows<float> grad_b, std::int64_t N, std::int64_t O,
                     std::int64_t R);

template <class T>
void lora_grad_a_cpu(Rows<const T> ds, Rows<const T> x, Rows<float> grad_a, std::int64_t N, std::int64_t D,
                     std::int64_t R);

}  // namespace lora_train::kernels
