// The scalars of a step, as training and clipping leave them to the optimizer.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/optim/adamw.h"

namespace lora_train::optim {

inline at::Tensor scalars_for(int64_t step, double learning_rate, const AdamWOptions& options, double clip_factor) {
  auto scalars = at::zeros({kNumStepScalars}, at::kDouble);
  const auto first = first_scalars(step, 1, learning_rate, options);
  std::copy(first.begin(), first.end(), scalars.mutable_data_ptr<double>());
  scalars[kClipFactor] = clip_factor;
  return scalars;
}

}  // namespace lora_train::optim
