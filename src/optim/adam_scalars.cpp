#include "lora_train/optim/adam_scalars.h"

#include <cmath>

#include "lora_train/base/error.h"

namespace lora_train::optim {

std::array<double, kNumFirstScalars> first_scalars(std::int64_t step, double loss_denominator, double learning_rate,
                                                   const AdamWOptions& options) {
  if (step < 1) throw ShapeError("first_scalars: step", "is " + std::to_string(step) + ", expected 1 or more");
  std::array<double, kNumFirstScalars> scalars{};
  scalars[kLossDenominator] = loss_denominator;
  scalars[kLearningRate] = learning_rate;
  scalars[kBeta1Correction] = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  scalars[kBeta2Correction] = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  return scalars;
}

}  // namespace lora_train::optim
