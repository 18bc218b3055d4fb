// The evaluations of a run: when they are due, what they report, and what follows from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "best_model.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/data/prepare.h"
#include "lora_train/report/summary.h"
#include "lora_train/run/run_state.h"
#include "reporters.h"

namespace lora_train::run {

/// The steps at which a cadence (eval_steps, save_steps) is due.
class DueSteps {
 public:
  DueSteps(const Cadence& cadence, const data::RunPlan& plan) : plan_(plan) {
    const std::int64_t total = plan.total_steps();
    if (cadence.kind == Cadence::Kind::kSteps) every_ = static_cast<std::int64_t>(cadence.value);
    if (cadence.kind == Cadence::Kind::kFraction) {
      every_ =
          std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(cadence.value * static_cast<double>(total))));
    }
    each_epoch_ = cadence.kind == Cadence::Kind::kEpoch;
  }
  /// The next one after `step`; nothing if it is each epoch, or none comes before the end.
  std::optional<std::int64_t> next_after(std::int64_t step) const {
    if (every_ <= 0 || (step / every_ + 1) * every_ > plan_.total_steps()) return std::nullopt;
    return (step / every_ + 1) * every_;
  }
  bool is_due(std::int64_t step) const {
    return (every_ > 0 && step % every_ == 0) || (each_epoch_ && step > 0 && plan_.ends_epoch(step));
  }

 private:
  const data::RunPlan& plan_;
  std::int64_t every_ = 0;
  bool each_epoch_ = false;
};

class EvaluationSchedule {
 public:
  /// Both must outlive it.
  EvaluationSchedule(Run& run, Reporters& reporters);

  /// Whether data sets or a task are due after this step, by eval_steps or by a task's `every`.
  bool is_due(std::int64_t step) const;
  /// The step after which the next one by eval_steps is, for the progress line.
  std::optional<std::int64_t> next_after(std::int64_t step) const {
    const bool has_any = !run_.data.evals.empty() || !due_of_tasks_.empty();
    return has_any ? due_.next_after(step) : std::nullopt;
  }
  /// Whether an evaluation is due after the last finished step and has not ended.
  bool is_owed() const;
  /// Evaluates what is due after the last finished step; everything before step 1, after the last step, and where
  /// early_stopping_patience ends the run. Then puts the result into the state of the run. Throws StopError before it has changed
  /// anything there.
  void evaluate();

  /// Whether the last evaluation was the best so far, and the run is to keep it.
  bool has_new_best() const {
    return run_.profile().run.load_best_model_at_end && run_.state.best_step == run_.state.step;
  }
  /// Whether early_stopping_patience ends the run here.
  bool end_run() const { return !is_owed() && best_.has_stopped_improving(run_.state); }
  /// Why, if they do.
  std::string stop_in_words() const { return best_.stop_in_words(run_.state); }
  /// The latest figures of each task that this process has evaluated.
  const std::vector<report::NamedTaskFigures>& task_figures() const { return task_figures_; }

 private:
  /// Shows how many micro-batches are done.
  evaluate::OnMicroBatch show_progress(const std::string& name) const;
  bool is_everything_due() const;
  bool are_sets_due() const;
  std::vector<std::size_t> due_tasks() const;
  void evaluate_sets(evaluate::Evaluation& results);
  void evaluate_tasks(const std::vector<std::size_t>& which, evaluate::Evaluation& results);
  /// Counts the time since `start` as evaluation.
  double end_phase(Clock::time_point start);
  void warn_of_cost(double eval_s);

  Run& run_;
  Reporters& reporters_;
  std::vector<report::DocumentLosses> document_losses_;  ///< of the last evaluation; of the rank that writes
  std::vector<report::NamedTaskFigures> task_figures_;
  const BestModel best_;
  const DueSteps due_;
  std::vector<std::optional<DueSteps>> due_of_tasks_;  ///< of those with a cadence of their own
  double evals_after_steps_s_ = 0;                     ///< of this process
  bool has_warned_ = false;
};

/// "evaluations take 23% of the time ...": empty unless evaluations of so many seconds are more than a tenth of the run. Those
/// below a second in all are nobody's trouble.
std::string evaluation_cost_in_words(double eval_s, double train_s);

}  // namespace lora_train::run
