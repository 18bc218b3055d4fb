// The model of a forecast, from a folder that need not have weights.
#pragma once

#include "lora_train/runtime/setup.h"

namespace lora_train::forecast {

/// Headers of weights are read where there are any. Throws FormatError for a quantised folder without weights: only they say which
/// linears are.
runtime::ModelFiles open_model_files(const Profile& profile);

}  // namespace lora_train::forecast
