// The worst batch first: what will not fit the memory fails before step 1 and not in the night.
#pragma once

#include <string>

#include "lora_train/train/run_state.h"

namespace lora_train::train {

/// Looked for once.
const LargestMicroBatch& largest_micro_batch(Run& run);

/// The largest micro-batch of all steps through forward, backward and a frozen optimizer, and the largest one of the
/// evaluations forward; their products are given algorithms (tuning/tuning.h). Updates nothing, but the gradient buffer. Returns one
/// line of what was computed. Throws DeviceError where the memory is not enough, NumericError where the loss is not finite.
std::string rehearse(Run& run);

/// Records the steps of the run for replay (step_graphs.h) where `cuda_graphs` asks for it and the device can; a step of each
/// batch class is computed first, frozen. Where CUDA refuses, says so in the log, and steps are computed as they come.
void capture_steps(Run& run);

}  // namespace lora_train::train
