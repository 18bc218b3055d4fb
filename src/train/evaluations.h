// The evaluations of a run: when they are due, what they report, and what follows from them.
#pragma once

#include <cstdint>
#include <string>

#include "best_model.h"
#include "due_steps.h"
#include "lora_train/train/run_state.h"
#include "reporters.h"

namespace lora_train::train {

class Evaluations {
 public:
  /// Both must outlive it.
  Evaluations(Run& run, Reporters& reporters)
      : run_(run),
        reporters_(reporters),
        best_(run.profile().run, run.data.evals),
        due_(run.profile().run.eval_steps, *run.plan) {}

  bool is_due(std::int64_t step) const { return due_.is_due(step); }
  /// The step after which the next one is, for the progress line.
  std::optional<std::int64_t> next_after(std::int64_t step) const {
    return run_.data.evals.empty() ? std::nullopt : due_.next_after(step);
  }
  /// Whether one is due after the last finished step and has not ended.
  bool is_owed() const;
  /// Evaluates all data sets and puts the result into the state of the run. Throws StopError before it has changed anything there.
  void evaluate_all();

  /// Whether the last evaluation was the best so far, and the run is to keep it.
  bool has_new_best() const {
    return run_.profile().run.load_best_model_at_end && run_.state.best_step == run_.state.step;
  }
  /// Whether early_stopping_patience ends the run here.
  bool end_run() const { return !is_owed() && best_.has_stopped_improving(run_.state); }
  /// Why, if they do.
  std::string stop_in_words() const { return best_.stop_in_words(run_.state); }

 private:
  /// Shows how many micro-batches are done.
  evaluate::OnMicroBatch show_progress(const std::string& name) const;

  Run& run_;
  Reporters& reporters_;
  std::vector<metrics::DocumentLosses> document_losses_;  ///< of the last evaluation; of the rank that writes
  const BestModel best_;
  const DueSteps due_;
};

}  // namespace lora_train::train
