// The record of a finished step.
#pragma once

#include "lora_train/report/metrics_writer.h"
#include "lora_train/report/progress_bar.h"
#include "lora_train/run/run_state.h"
#include "lora_train/run/train_step.h"

namespace lora_train::run {

/// What plan, result and clock of the run know of the step that has just ended; the caller adds what only the loop knows.
report::TrainRecord step_record(const Run& run, const data::StepPlan& plan, const StepResult& result, double step_s);

/// Puts the sums of a run into what a checkpoint keeps, and back.
void take_times(const report::RunTimes& times, run_folder::TrainState& state);
report::RunTimes times_of(const run_folder::TrainState& state);

/// What the progress line shows of it. Rates and time left are those of the steps of this process.
report::ProgressState progress_after(const Run& run, const data::StepPlan& plan, std::int64_t num_steps,
                                     std::int64_t num_tokens);

}  // namespace lora_train::run
