#include "lora_train/report/task_figures.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::report {
namespace {

double size_of(std::span<const Judged> answers) { return static_cast<double>(answers.size()); }

void add(const Judged& answer, CalibrationBin& bin) {
  ++bin.count;
  bin.confidence += answer.confidence;
  bin.num_right += answer.is_right ? 1 : 0;
}

std::vector<Judged> by_confidence(std::span<const Judged> answers) {
  std::vector<Judged> sorted(answers.begin(), answers.end());
  std::ranges::stable_sort(sorted, {}, &Judged::confidence);
  return sorted;
}

const std::vector<std::string> kLossMetrics = {"loss", "perplexity", "token_accuracy", "ece"};

std::vector<std::string> names_of_tasks(const std::vector<EvalTask>& tasks) {
  std::vector<std::string> names;
  for (const EvalTask& task : tasks) {
    for (const TaskMetric& metric : task_metrics(task.kind)) names.push_back(task.name + "." + metric.name);
  }
  return names;
}

[[noreturn]] void refuse(const std::string& name, const std::vector<std::string>& sets,
                         const std::vector<EvalTask>& tasks) {
  const std::vector<std::string> of_tasks = names_of_tasks(tasks);
  std::vector<std::string> known = of_tasks, expected;
  if (!sets.empty()) {
    for (const char* of_all : {"eval_loss", "perplexity", "token_accuracy", "ece"}) known.push_back(of_all);
    for (const auto& set : sets) known.push_back(set + ".loss");
    expected.push_back(
        "eval_loss, perplexity, token_accuracy or ece, or one of these for a dataset, as NAME.loss (the sets are: " +
        join(sets) + ")");
  }
  if (!tasks.empty()) expected.push_back(fmt::format("a task metric ({})", join(of_tasks)));
  if (expected.empty()) expected.push_back("eval_loss, perplexity, token_accuracy or ece");
  const std::string nearest = nearest_name(name, known);
  throw ConfigError("metric_for_best_model", "no evaluation has \"{}\".{} Expected {}.", name,
                    nearest.empty() ? "" : fmt::format(" Did you mean \"{}\"?", nearest), join(expected, ", or "));
}

/// The longest of `names` that is followed by a dot at the start of `name`: names may contain dots.
std::string source_of(const std::string& name, const std::vector<std::string>& names) {
  std::string source;
  for (const auto& candidate : names) {
    if (name.starts_with(candidate + ".") && candidate.size() > source.size()) source = candidate;
  }
  return source;
}

}  // namespace

std::vector<CalibrationBin> equal_width_bins(std::span<const Judged> answers) {
  std::vector<CalibrationBin> bins(kCalibrationBins);
  for (const Judged& answer : answers) {
    const auto bin = static_cast<std::size_t>(answer.confidence * static_cast<double>(kCalibrationBins));
    add(answer, bins[std::min(bin, kCalibrationBins - 1)]);
  }
  return bins;
}

std::vector<CalibrationBin> equal_mass_bins(std::span<const Judged> answers) {
  const std::vector<Judged> sorted = by_confidence(answers);
  std::vector<CalibrationBin> bins(kCalibrationBins);
  const std::size_t least = sorted.size() / kCalibrationBins, num_larger = sorted.size() % kCalibrationBins;
  auto next = sorted.begin();
  for (std::size_t i = 0; i < kCalibrationBins; ++i) {
    for (std::size_t count = least + (i < num_larger ? 1 : 0); count > 0; --count) add(*next++, bins[i]);
  }
  return bins;
}

double calibration_error(std::span<const CalibrationBin> bins) {
  double error = 0;
  long long count = 0;
  for (const CalibrationBin& bin : bins) {
    error += std::abs(bin.confidence - static_cast<double>(bin.num_right));
    count += bin.count;
  }
  return error / static_cast<double>(count);
}

double brier_score(std::span<const Judged> answers) {
  double sum = 0;
  for (const Judged& answer : answers) sum += std::pow(answer.confidence - (answer.is_right ? 1 : 0), 2);
  return sum / size_of(answers);
}

std::optional<double> auroc(std::span<const Judged> answers) {
  const std::vector<Judged> sorted = by_confidence(answers);
  double pairs = 0;  // pairs of a right and a wrong answer in which the right one is more confident
  double num_wrong = 0, num_right = 0;
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    double right = 0, wrong = 0;
    auto end = begin;
    for (; end != sorted.end() && end->confidence == begin->confidence; ++end) (end->is_right ? right : wrong) += 1;
    pairs += right * (num_wrong + wrong / 2);
    num_right += right;
    num_wrong += wrong;
    begin = end;
  }
  if (num_right == 0 || num_wrong == 0) return std::nullopt;
  return pairs / (num_right * num_wrong);
}

double mean_confidence(std::span<const Judged> answers) {
  double sum = 0;
  for (const Judged& answer : answers) sum += answer.confidence;
  return sum / size_of(answers);
}

double share_right(std::span<const Judged> answers) {
  return static_cast<double>(std::ranges::count_if(answers, &Judged::is_right)) / size_of(answers);
}

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
  return std::string_view(metric.name) == "accuracy" ? fmt::format("{:.2f}%", 100 * *value)
                                                     : fmt::format("{:.4f}", *value);
}

std::string in_words(TaskKind kind, const TaskFigures& figures) {
  std::vector<std::string> parts;
  for (const TaskMetric& metric : task_metrics(kind))
    parts.push_back(fmt::format("{} {}", metric.name, format_task_figure(metric, figures)));
  return join(parts);
}

BestMetric find_best_metric(const RunSection& section, const std::vector<std::string>& sets,
                            const std::vector<EvalTask>& tasks) {
  BestMetric best{section.metric_for_best_model, "", false, section.metric_for_best_model, false};
  std::vector<std::string> task_names;
  for (const EvalTask& task : tasks) task_names.push_back(task.name);
  const std::string of_set = source_of(best.name, sets), of_task = source_of(best.name, task_names);
  best.is_of_task = of_task.size() > of_set.size();
  best.source = best.is_of_task ? of_task : of_set;
  if (!best.source.empty()) best.metric = best.name.substr(best.source.size() + 1);
  if (best.metric.starts_with("eval_")) best.metric = best.metric.substr(5);
  if (best.is_of_task) {
    const auto task = std::ranges::find(tasks, of_task, &EvalTask::name);
    const std::vector<TaskMetric> metrics = task_metrics(task->kind);
    const auto found = std::ranges::find(metrics, best.metric, &TaskMetric::name);
    if (found == metrics.end()) refuse(best.name, sets, tasks);
    const std::optional<bool> greater_is_better =
        section.greater_is_better ? section.greater_is_better : found->greater_is_better;
    if (!greater_is_better) {
      throw ConfigError("metric_for_best_model", "\"" + best.name +
                                                     "\" has no better direction. Name another metric (ece, " +
                                                     "brier), or set greater_is_better.");
    }
    best.greater_is_better = *greater_is_better;
    return best;
  }
  const bool is_asked_for = section.load_best_model_at_end || section.early_stopping_patience;
  const bool has_no_data = sets.empty() && !tasks.empty() && is_asked_for;
  if (has_no_data || std::ranges::count(kLossMetrics, best.metric) == 0) refuse(best.name, sets, tasks);
  best.greater_is_better = section.greater_is_better.value_or(best.metric == "token_accuracy");
  return best;
}

}  // namespace lora_train::report
