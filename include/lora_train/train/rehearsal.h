// Runs the largest batch first, so that a run that does not fit into memory fails before step 1.
#pragma once

#include <string>

#include "lora_train/train/run_state.h"

namespace lora_train::train {

/// The first call searches; later calls return the same result.
const LargestMicroBatch& largest_micro_batch(Run& run);

/// Runs the largest micro-batch of all steps through forward, backward and a frozen optimizer, and the largest of the
/// evaluations through forward; this also tunes their GEMMs (tuning/tuning.h). Changes only the gradient buffer. Returns a
/// description for the log. Throws DeviceError if memory runs out, NumericError if the loss is not finite.
std::string rehearse(Run& run);

/// Captures the steps of the run (step_graphs.h) if `cuda_graphs` and the device allow it, after one frozen step of each batch
/// class. If CUDA refuses, logs a warning, and steps run without graphs. run.capture says what was done. Throws if the device has
/// failed.
void capture_steps(Run& run);

}  // namespace lora_train::train
