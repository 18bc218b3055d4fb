// Cases of the kernels around the layers.
#pragma once

#include <vector>

#include "kernel_cases.h"

namespace lora_train::doctor {

/// Kernels around the layers (kernel_cases_step.cpp): casts, picked rows, loss sums, gradient norm, AdamW. Masters and
/// moments are fp32, so that some are there for fp32 alone.
std::vector<Case> step_cases(const Place& place);

}  // namespace lora_train::doctor
