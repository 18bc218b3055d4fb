#pragma once

#include <cstdint>

namespace lora_train {

/// a / b, rounded up. a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The least multiple of `step` that is at least a.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t step) { return ceil_div(a, step) * step; }

}  // namespace lora_train
