// The figures of an eval_task, with their names in metrics.jsonl, `eval --json` and metric_for_best_model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/report/calibration.h"

namespace lora_train::report {

/// Those that its kind has; auroc is empty too where all answers are right, or all wrong.
struct TaskFigures {
  long long num_rows = 0;
  std::optional<double> accuracy = {};        ///< share of the answers that are right
  std::optional<double> ece = {};             ///< calibration error in 15 bins of equal width
  std::optional<double> ece_equal_mass = {};  ///< the same in 15 bins of equal count
  std::optional<double> brier = {};
  std::optional<double> auroc = {};
  std::optional<double> mean_confidence = {};
  std::optional<double> over_confidence = {};  ///< mean_confidence - accuracy
  std::vector<CalibrationBin> bins = {};       ///< of equal width; empty for exact_match
};

struct NamedTaskFigures {
  std::string name;
  TaskKind kind = TaskKind::kExactMatch;
  TaskFigures figures;
};

struct TaskMetric {
  const char* name;
  std::optional<double> TaskFigures::*value;
  std::optional<bool> greater_is_better;  ///< empty: neither is, unless the profile says so
};

/// The figures of a kind but num_rows and bins, in the order in which they are shown.
std::vector<TaskMetric> task_metrics(TaskKind kind);

/// Of answers to `kind`: confidence, or exact_match, which has no confidences.
TaskFigures task_figures(TaskKind kind, std::span<const Judged> answers);

/// "accuracy 81.50%, ece 0.0342, brier 0.1200, auroc 0.8810"
std::string in_words(TaskKind kind, const TaskFigures& figures);

/// The text of a figure: "81.50%", "0.0342"; "-" if it is empty.
std::string format_task_figure(const TaskMetric& metric, const TaskFigures& figures);

}  // namespace lora_train::report
