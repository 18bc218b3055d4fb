// The training loop.
#pragma once

#include "lora_train/metrics/summary.h"
#include "lora_train/train/run_state.h"
#include "reporters.h"

namespace lora_train::train {

/// Trains from state.step + 1 to the end or to a stop request, and fills the fields of `summary` about training.
void train_loop(Run& run, Reporters& reporters, metrics::RunSummary& summary);

}  // namespace lora_train::train
