// The record of a finished step.
#pragma once

#include "lora_train/metrics/metrics_writer.h"
#include "lora_train/train/run_state.h"
#include "lora_train/train/train_step.h"

namespace lora_train::train {

/// What plan, result and clock of the run know of the step that has just ended; the caller adds what only the loop knows.
metrics::TrainRecord step_record(const Run& run, const data::StepPlan& plan, const StepResult& result, double step_s);

}  // namespace lora_train::train
