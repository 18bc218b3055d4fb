// The evaluations of a run: when they are due, what they report, and what follows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/prepare.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/report/eval_figures.h"
#include "lora_train/report/summary.h"
#include "lora_train/run/run_state.h"
#include "lora_train/run_folder/checkpoint.h"
#include "reporters.h"

namespace lora_train::run {

/// Tracks metric_for_best_model over the evaluations of a run. Keeps its state in TrainState, so that a resumed run
/// continues with it.
class BestModel {
 public:
  /// Throws as report::find_best_metric.
  BestModel(const RunSection& section, const std::vector<std::string>& eval_sets, const std::vector<EvalTask>& tasks);

  /// Call it after each evaluation. The one before step 1 is never the best. Among equals the earliest stays the best.
  /// An evaluation without the metric (its task was not due, or its auroc is undefined) counts neither as a gain nor as
  /// a lack of gain.
  void judge(const evaluate::Evaluation& results, run_folder::TrainState& state) const;

  /// True if early_stopping_patience ends the run here.
  bool has_stopped_improving(const run_folder::TrainState& state) const {
    return patience_ && state.evals_without_gain >= *patience_;
  }

  /// "early stopping: eval_loss did not improve in 3 evaluations; best at step 40".
  std::string stop_in_words(const run_folder::TrainState& state) const;

 private:
  /// The metric of the task or the set, or over all sets weighted by tokens.
  std::optional<double> value_of(const evaluate::Evaluation& results) const;
  bool is_better(double value, double than) const { return metric_.greater_is_better ? value > than : value < than; }

  report::BestMetric metric_;
  std::optional<std::int64_t> patience_;
  double threshold_ = 0;
};

/// Throws the FormatError for a best checkpoint that adapter/ cannot be made from.
[[noreturn]] void refuse_best_checkpoint(const std::filesystem::path& checkpoint, const std::string& problem);

/// For a run whose best checkpoint is missing: from now on, only later evaluations can be the best.
void forget_best(run_folder::TrainState& state);

/// The steps at which a cadence (eval_steps, save_steps) is due.
class DueSteps {
 public:
  DueSteps(const Cadence& cadence, const data::RunPlan& plan)
      : plan_(plan), every_(cadence.period(plan.total_steps())), each_epoch_(cadence.kind == Cadence::Kind::kEpoch) {}
  /// The next due step after `step`; nothing if the cadence is per epoch, or none comes before the end.
  std::optional<std::int64_t> next_after(std::int64_t step) const {
    if (every_ <= 0 || (step / every_ + 1) * every_ > plan_.total_steps()) return std::nullopt;
    return (step / every_ + 1) * every_;
  }
  bool is_due(std::int64_t step) const {
    return (every_ > 0 && step % every_ == 0) || (each_epoch_ && step > 0 && plan_.ends_epoch(step));
  }

 private:
  const data::RunPlan& plan_;
  std::int64_t every_;
  bool each_epoch_;
};

class EvaluationSchedule {
 public:
  /// Both arguments must outlive this.
  EvaluationSchedule(Run& run, Reporters& reporters);

  /// True if datasets or a task are due after this step, by eval_steps or by a task's `every`.
  bool is_due(std::int64_t step) const;
  /// The step of the next evaluation by eval_steps, for the progress line.
  std::optional<std::int64_t> next_after(std::int64_t step) const {
    const bool has_any = !run_.data.evals.empty() || !due_of_tasks_.empty();
    return has_any ? due_.next_after(step) : std::nullopt;
  }
  /// True if an evaluation is due after the last finished step and has not ended.
  bool is_owed() const;
  /// Evaluates what is due after the last finished step; everything if that is before step 1, after the last step, or
  /// when early_stopping_patience ends the run. Then updates the state of the run. If it throws StopError, that state
  /// is unchanged.
  void evaluate();

  /// True if the last evaluation was the best so far and the run keeps the best.
  bool has_new_best() const {
    return run_.profile().run.load_best_model_at_end && run_.state.best_step == run_.state.step;
  }
  /// True if early_stopping_patience ends the run here.
  bool ends_run() const { return !is_owed() && best_.has_stopped_improving(run_.state); }
  /// The reason for ending early.
  std::string stop_in_words() const { return best_.stop_in_words(run_.state); }
  /// The latest figures of each task that this process has evaluated.
  const std::vector<report::EvalFigures>& task_figures() const { return task_figures_; }

 private:
  /// Shows the number of finished micro-batches.
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
  std::vector<report::DocumentLosses> document_losses_;  ///< of the last evaluation; only on the rank that writes
  std::vector<report::EvalFigures> task_figures_;
  const BestModel best_;
  const DueSteps due_;
  std::vector<std::optional<DueSteps>> due_of_tasks_;  ///< for tasks with their own cadence
  double evals_after_steps_s_ = 0;                     ///< in this process
  bool has_warned_ = false;
};

/// "evaluations take 23% of the time ..."; empty unless evaluations take more than a tenth of the run and at least a
/// second.
std::string evaluation_cost_in_words(double eval_s, double train_s);

}  // namespace lora_train::run
