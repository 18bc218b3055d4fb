// Runs the largest batch first, so that a run that does not fit into memory fails before step 1.
#pragma once

#include <string>

#include "lora_train/train/run_state.h"

namespace lora_train::train {

/// Searches once, then returns the same result.
const LargestMicroBatch& largest_micro_batch(Run& run);

/// Runs the largest micro-batch of all steps through forward, backward and a frozen optimizer, and the largest of the evaluations
/// through forward; this also tunes their GEMMs (tuning/tuning.h). Changes nothing but the gradient buffer. Returns a line for
/// the log. Throws DeviceError if memory is short, NumericError if the loss is not finite.
std::string rehearse(Run& run);

/// Captures the steps of the run (step_graphs.h) if `cuda_graphs` and the device allow it, after running a step of each batch
/// class frozen. If CUDA refuses, logs that, and steps run without graphs.
void capture_steps(Run& run);

}  // namespace lora_train::train
