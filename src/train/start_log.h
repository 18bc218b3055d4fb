// What a run logs before step 1.
#pragma once

#include "lora_train/train/run_state.h"

namespace lora_train::train {

/// What computes, and which model. Once it is open.
void log_device_and_model(const Run& run);

/// Steps and batches, the adapter, where the result goes, what memory is saved and how; warns of a run with few steps. Once all is allocated.
void log_start(const Run& run);

/// Warns if the run does not fit the GPU that its profile is meant for (target_gpu), or is on another one. Once run.spec is decided.
void warn_of_target_gpu(const Run& run);

}  // namespace lora_train::train
