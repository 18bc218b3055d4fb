// A run that the same command finds finished.
#pragma once

#include "lora_train/run/train_request.h"

namespace lora_train::run {

/// Throws ConfigError if the training data are no longer those of the finished run in output_dir, as a resume would, unless
/// --allow-changed names datasets. Data or a model that are gone say nothing: the result is there.
void refuse_other_data(const TrainRequest& request);

}  // namespace lora_train::run
