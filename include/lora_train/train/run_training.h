// `train`: a whole run, from its request to its summary.
#pragma once

#include "lora_train/train/train_request.h"

namespace lora_train::train {

/// Trains, writes everything below output_dir and returns the content of summary.json. Throws on any failure; once the folder
/// exists, summary.json is written in that case too, and run.log stays open for the error report. A stop request is not an
/// error: exit_code 75.
TrainResult run_training(const TrainRequest& request);

}  // namespace lora_train::train
