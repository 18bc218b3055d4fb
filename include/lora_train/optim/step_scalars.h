// The numbers of an optimizer step, in memory of the device that computes it: nothing in a step waits for the host to read
// one. An fp64 tensor [kNumStepScalars], contiguous, on the device of the parameters.
//
// The host writes the first ones before a step (first_scalars); the loss head adds to kLossSum; measure_gradients writes the
// others; adamw_step reads them. kNonFinite stays set until the host clears it: no step after it updates anything.
#pragma once

#include <array>
#include <cstdint>

#include "lora_train/kernels/adamw.h"

namespace lora_train::optim {

using kernels::AdamWOptions;
using enum kernels::StepScalar;

/// The scalars that the host writes: kLossSum (0), kLossDenominator, kLearningRate, kBeta1Correction, kBeta2Correction.
constexpr std::int64_t kNumFirstScalars = kBeta2Correction + 1;

/// For optimizer step `step`, which counts from 1. Throws ShapeError where it is less.
std::array<double, kNumFirstScalars> first_scalars(std::int64_t step, double loss_denominator, double learning_rate,
                                                   const AdamWOptions& options);

}  // namespace lora_train::optim
