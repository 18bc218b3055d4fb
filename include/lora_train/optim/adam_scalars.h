// The scalars of an optimizer step, in device memory, so that a step never waits for the host: an fp64 tensor
// [kNumStepScalars], contiguous, on the device of the parameters.
//
// Before a step, the host writes the first ones (first_scalars). The objective adds to kLossSum, measure_gradients writes the
// others, and the optimizer reads them. kNonFinite stays set until the host clears it; until then, no step updates anything.
#pragma once

#include <array>
#include <cstdint>

#include "lora_train/kernels/adamw/adamw.h"

namespace lora_train::optim {

using kernels::AdamWOptions;
using enum kernels::StepScalar;

/// The scalars that the host writes: kLossSum (0), kLossDenominator, kLearningRate, kBeta1Correction, kBeta2Correction.
constexpr std::int64_t kNumFirstScalars = kBeta2Correction + 1;

/// Those scalars for optimizer step `step`, counted from 1. Throws ShapeError if it is less.
std::array<double, kNumFirstScalars> first_scalars(std::int64_t step, double loss_denominator, double learning_rate,
                                                   const AdamWOptions& options);

}  // namespace lora_train::optim
