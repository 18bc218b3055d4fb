// The model of a forecast, from a folder that need not have weights.
#pragma once

#include "lora_train/plan/setup/setup.h"

namespace lora_train::bench {

/// Headers of weights are read where there are any. Throws FormatError for a quantised folder without weights: only they say which
/// linears are.
plan::ModelFiles open_model_files(const Profile& profile);

}  // namespace lora_train::bench
