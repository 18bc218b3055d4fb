// `train`: a whole run, from its request to its summary.
#pragma once

#include "lora_train/run/train_request.h"

namespace lora_train::run {

/// Trains, writes everything below output_dir and returns the content of summary.json. Throws on any failure; if the folder
/// exists by then, it still writes summary.json and leaves run.log open for the error report. A stop request is not an
/// error: it returns exit_code 75.
TrainResult run_training(const TrainRequest& request);

}  // namespace lora_train::run
