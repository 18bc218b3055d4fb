// Contract in rope.h; T is float or Bf16.
#pragma once

#include "launch/rows.h"

namespace lora_train::kernels {

/// x: one row per token, H heads of E elements. cos, sin: rows of E / 2.
template <class T>
void rope_in_place_cpu(Rows<T> x, const std::int32_t* positions, Rows<const float> cos, Rows<const float> sin,
                       bool inverse, std::int64_t num_tokens, std::int64_t H, std::int64_t E);

}  // namespace lora_train::kernels
