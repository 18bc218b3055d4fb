// Runs the largest batch first, so that a run that does not fit into memory fails before step 1.
#pragma once

#include <functional>
#include <string>

#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// Searches on the first call; later calls return the same result.
const LargestMicroBatch& largest_micro_batch(Run& run);

/// Frees everything that depends on the spec: weights, buffers and graphs. Waits for the device.
void release_buffers(Run& run);

/// Captures the steps of the run (StepGraphs) if `cuda_graphs` and the device allow it, after one frozen step of each
/// batch class. If CUDA refuses, logs a warning, and steps run without graphs. Records the outcome in run.capture.
/// Throws if the device has failed.
void capture_steps(Run& run);

/// Rehearses: runs the largest training micro-batch through forward, backward and a frozen optimizer, and the largest
/// evaluation micro-batch through forward. This changes only the gradient buffer. Then captures the steps if
/// `captures`. Both tune GEMMs (plan/tuning/tuning.h), rank 0 for all ranks. If a rank runs out of memory although the
/// plan fits, all ranks plan once more, for 1.5 GiB less or for the available memory, call `rebuild`, which goes from
/// run.facts to buffers, and start over. Returns a description of the rehearsed work for the log. Throws DeviceError if
/// memory runs out again or nothing is left to plan; NumericError if the loss is not finite.
std::string prepare_steps(Run& run, const std::function<void()>& rebuild, bool captures = true);

}  // namespace lora_train::run
