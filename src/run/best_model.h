// Which evaluation is the best so far, and whether the run has stopped getting better.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/prepare.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/report/task_figures.h"
#include "lora_train/run_folder/checkpoint.h"

namespace lora_train::run {

/// metric_for_best_model over the evaluations of a run. What it knows is in the TrainState, so that a resumed run goes on with it.
class BestModel {
 public:
  /// Throws as report::find_best_metric.
  BestModel(const RunSection& section, const std::vector<std::string>& eval_sets, const std::vector<EvalTask>& tasks);

  /// Call it after each evaluation. The one before step 1 is never the best. Of equal ones the earlier stays the best. An evaluation
  /// without the metric (its task was not due, or its auroc is not defined) counts neither as better nor as no better.
  void judge(const evaluate::Evaluation& results, run_folder::TrainState& state) const;

  /// Whether early_stopping_patience ends the run here.
  bool has_stopped_improving(const run_folder::TrainState& state) const {
    return patience_ && state.evals_without_gain >= *patience_;
  }

  /// "early stopping: eval_loss no better in 3 evaluations; best at step 40".
  std::string stop_in_words(const run_folder::TrainState& state) const;

 private:
  /// The metric of the task or the set, or over all sets weighted by tokens.
  std::optional<double> value_of(const evaluate::Evaluation& results) const;
  bool is_better(double value, double than) const { return metric_.greater_is_better ? value > than : value < than; }

  report::BestMetric metric_;
  std::optional<std::int64_t> patience_;
  double threshold_ = 0;
};

/// Throws FormatError: adapter/ cannot be made of this checkpoint.
[[noreturn]] void refuse_best_checkpoint(const std::filesystem::path& checkpoint, const std::string& problem);

/// For a run whose best checkpoint is not there: the best from here on counts.
void forget_best(run_folder::TrainState& state);

}  // namespace lora_train::run
