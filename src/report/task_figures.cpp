#include "lora_train/report/task_figures.h"

#include <string_view>

#include "lora_train/base/text.h"

namespace lora_train::report {

std::vector<TaskMetric> task_metrics(TaskKind kind) {
  const TaskMetric accuracy{"accuracy", &TaskFigures::accuracy, true}, ece{"ece", &TaskFigures::ece, false},
      brier{"brier", &TaskFigures::brier, false};
  switch (kind) {
    case TaskKind::kExactMatch: return {accuracy};
    case TaskKind::kChoices: return {accuracy, ece, brier};
    case TaskKind::kConfidence: break;
  }
  return {accuracy,
          ece,
          {"ece_equal_mass", &TaskFigures::ece_equal_mass, false},
          brier,
          {"auroc", &TaskFigures::auroc, true},
          {"mean_confidence", &TaskFigures::mean_confidence, std::nullopt},
          {"over_confidence", &TaskFigures::over_confidence, std::nullopt}};
}

TaskFigures task_figures(TaskKind kind, std::span<const Judged> answers) {
  TaskFigures figures;
  figures.num_rows = static_cast<long long>(answers.size());
  figures.accuracy = share_right(answers);
  if (kind == TaskKind::kExactMatch) return figures;
  figures.bins = equal_width_bins(answers);
  figures.ece = calibration_error(figures.bins);
  figures.ece_equal_mass = calibration_error(equal_mass_bins(answers));
  figures.brier = brier_score(answers);
  figures.auroc = auroc(answers);
  figures.mean_confidence = mean_confidence(answers);
  figures.over_confidence = *figures.mean_confidence - *figures.accuracy;
  return figures;
}

std::string format_task_figure(const TaskMetric& metric, const TaskFigures& figures) {
  const std::optional<double> value = figures.*metric.value;
  if (!value) return "-";
  return std::string_view(metric.name) == "accuracy" ? string_printf("%.2f%%", 100 * *value)
                                                     : string_printf("%.4f", *value);
}

std::string in_words(TaskKind kind, const TaskFigures& figures) {
  std::vector<std::string> parts;
  for (const TaskMetric& metric : task_metrics(kind))
    parts.push_back(std::string(metric.name) + " " + format_task_figure(metric, figures));
  return join(parts);
}

}  // namespace lora_train::report
