// `train`: a whole run, from its request to its summary.
#pragma once

#include "lora_train/train/train_request.h"

namespace lora_train::train {

/// Trains, writes everything below output_dir and returns what summary.json says. Whatever goes wrong is thrown; once
/// the folder exists summary.json is written in that case too, and run.log stays open for the report of the error. A
/// stop on request is no error: exit_code 75.
TrainResult run_training(const TrainRequest& request);

}  // namespace lora_train::train
