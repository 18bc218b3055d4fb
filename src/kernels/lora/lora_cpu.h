// Contracts in lora.h; T is float or Bf16. Both compute thin^T big; lora_grad_b then transposes it.
#pragma once

#include "launch/rows.h"
#include "lora_targets.h"

namespace lora_train::kernels {

template <class T>
void lora_grad_b_cpu(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, std::int64_t N);

/// x has D columns.
template <class T>
void lora_grad_a_cpu(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, std::int64_t N, std::int64_t D);

}  // namespace lora_train::kernels
