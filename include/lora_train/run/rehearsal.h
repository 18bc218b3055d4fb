// Runs the largest batch first, so that a run that does not fit into memory fails before step 1.
#pragma once

#include <functional>
#include <string>

#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// The first call searches; later calls return the same result.
const LargestMicroBatch& largest_micro_batch(Run& run);

/// Frees weights, buffers and graphs, all that depends on the spec. Waits for the device.
void release_buffers(Run& run);

/// Captures the steps of the run (StepGraphs) if `cuda_graphs` and the device allow it, after one frozen step of each batch
/// class. If CUDA refuses, logs a warning, and steps run without graphs. run.capture says what was done. Throws if the device has
/// failed.
void capture_steps(Run& run);

/// Rehearses: runs the largest micro-batch of all steps through forward, backward and a frozen optimizer, and the largest of the
/// evaluations through forward, which changes only the gradient buffer; then captures the steps if `captures`. Both tune GEMMs
/// (plan/tuning/tuning.h), and rank 0 for all. If a rank runs out of memory although the plan fits, all ranks plan once more, for 1.5 GiB
/// less or for what is there, call `rebuild`, which goes from run.facts to buffers, and begin again. Returns a description of what
/// was rehearsed, for the log. Throws DeviceError if memory runs out again, or if nothing is left to plan; NumericError if the loss is not
/// finite.
std::string prepare_steps(Run& run, const std::function<void()>& rebuild, bool captures = true);

}  // namespace lora_train::run
