// The training loop.
#pragma once

#include "lora_train/report/summary.h"
#include "lora_train/run/run_state.h"
#include "reporters.h"

namespace lora_train::run {

/// Trains from state.step + 1 to the end or to a stop request, and fills the fields of `summary` about training. Returns
/// the I/O error of the last save, if it failed: the run is to end with it, once its result is written.
[[nodiscard]] std::exception_ptr train_loop(Run& run, Reporters& reporters, report::RunSummary& summary);

}  // namespace lora_train::run
