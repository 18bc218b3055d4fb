#include "lora_train/report/eval_figures.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

double mean_of(std::span<const Judged> answers, const auto& value) {
  double sum = 0;
  for (const Judged& answer : answers) sum += value(answer);
  return sum / static_cast<double>(answers.size());
}

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

constexpr unsigned bit_of(std::optional<TaskKind> kind) { return kind ? 1U << static_cast<unsigned>(*kind) : 8; }

constexpr unsigned kDataset = bit_of(std::nullopt), kConfidence = bit_of(TaskKind::kConfidence);
constexpr unsigned kJudged = kConfidence | bit_of(TaskKind::kChoices);
constexpr unsigned kTasks = kJudged | bit_of(TaskKind::kExactMatch);

using F = EvalFigures;
constexpr EvalMetric kMetrics[] = {{"loss", &F::loss, false, kDataset},
                                   {"perplexity", &F::perplexity, false, kDataset},
                                   {"token_accuracy", &F::token_accuracy, true, kDataset},
                                   {"accuracy", &F::accuracy, true, kTasks},
                                   {"ece", &F::ece, false, kDataset | kJudged},
                                   {"ece_equal_mass", &F::ece_equal_mass, false, kConfidence},
                                   {"brier", &F::brier, false, kJudged},
                                   {"auroc", &F::auroc, true, kConfidence},
                                   {"mean_confidence", &F::mean_confidence, std::nullopt, kConfidence},
                                   {"over_confidence", &F::over_confidence, std::nullopt, kConfidence}};

[[noreturn]] void refuse(const std::string& name, const std::vector<std::string>& sets,
                         const std::vector<EvalTask>& tasks) {
  std::vector<std::string> known;
  if (!sets.empty() || tasks.empty()) known = {"eval_loss", "perplexity", "token_accuracy", "ece"};
  const auto add = [&](const std::string& source, std::optional<TaskKind> kind) {
    for (const EvalMetric& metric : eval_metrics(kind)) known.push_back(source + "." + metric.name);
  };
  for (const std::string& set : sets) add(set, std::nullopt);
  for (const EvalTask& task : tasks) add(task.name, task.kind);
  throw ConfigError("metric_for_best_model", "no evaluation has \"{}\".{} Expected one of {}.", name,
                    did_you_mean(name, known), join(known));
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
  return mean_of(answers, [](const Judged& a) { return std::pow(a.confidence - (a.is_right ? 1 : 0), 2); });
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
  return mean_of(answers, [](const Judged& answer) { return answer.confidence; });
}

double share_right(std::span<const Judged> answers) {
  return mean_of(answers, [](const Judged& answer) { return answer.is_right ? 1.0 : 0.0; });
}

std::span<const EvalMetric> all_eval_metrics() { return kMetrics; }

std::vector<EvalMetric> eval_metrics(std::optional<TaskKind> kind) {
  std::vector<EvalMetric> metrics;
  std::ranges::copy_if(kMetrics, std::back_inserter(metrics),
                       [&](const EvalMetric& metric) { return (metric.owners & bit_of(kind)) != 0; });
  return metrics;
}

EvalFigures task_figures(TaskKind kind, std::span<const Judged> answers) {
  EvalFigures figures{.kind = kind};
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

std::string format_eval_figure(const EvalMetric& metric, const EvalFigures& figures) {
  const std::optional<double> value = figures.*metric.value;
  if (!value) return "-";
  return std::string_view(metric.name) == "accuracy" ? fmt::format("{:.2f}%", 100 * *value)
                                                     : fmt::format("{:.4f}", *value);
}

std::string in_words(const EvalFigures& figures) {
  std::vector<std::string> parts;
  for (const EvalMetric& metric : eval_metrics(figures.kind))
    parts.push_back(fmt::format("{} {}", metric.name, format_eval_figure(metric, figures)));
  return join(parts);
}

std::string to_json(const EvalFigures& figures) {
  Json object = {{"name", figures.name}};
  put_figures(object, figures);
  return to_line(object);
}

void put_figures(Json& object, const EvalFigures& figures) {
  if (figures.kind) object["kind"] = lora_train::to_string(*figures.kind);
  for (const EvalMetric& metric : eval_metrics(figures.kind)) object[metric.name] = or_null(figures.*metric.value);
  figures.kind ? object["num_rows"] = figures.num_rows : object["num_tokens"] = figures.num_tokens;
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
  std::optional<TaskKind> kind;
  if (best.is_of_task) kind = std::ranges::find(tasks, of_task, &EvalTask::name)->kind;
  const std::vector<EvalMetric> metrics = eval_metrics(kind);
  const auto found = std::ranges::find(metrics, best.metric, &EvalMetric::name);
  const bool is_asked_for = section.load_best_model_at_end || section.early_stopping_patience;
  const bool has_no_data = !best.is_of_task && sets.empty() && !tasks.empty() && is_asked_for;
  if (has_no_data || found == metrics.end()) refuse(best.name, sets, tasks);
  const std::optional<bool> greater_is_better =
      section.greater_is_better ? section.greater_is_better : found->greater_is_better;
  if (!greater_is_better) {
    throw ConfigError("metric_for_best_model",
                      "\"{}\" has no better direction. Name another metric (ece, brier), or set greater_is_better.",
                      best.name);
  }
  best.greater_is_better = *greater_is_better;
  return best;
}

}  // namespace lora_train::report
