#include "lora_train/report/best_metric.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/report/task_figures.h"

namespace lora_train::report {
namespace {

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
        "eval_loss, perplexity, token_accuracy or ece, or one of them for a data set, as NAME.loss (the sets are: " +
        join(sets) + ")");
  }
  if (!tasks.empty()) expected.push_back("one of a task (" + join(of_tasks) + ")");
  if (expected.empty()) expected.push_back("eval_loss, perplexity, token_accuracy or ece");
  const std::string nearest = nearest_name(name, known);
  throw ConfigError("metric_for_best_model", "no evaluation has \"" + name + "\"." +
                                                 (nearest.empty() ? "" : " Did you mean \"" + nearest + "\"?") +
                                                 " Expected " + join(expected, ", or ") + ".");
}

/// The longest of `names` that `name` begins with, before a dot: names may have dots.
std::string source_of(const std::string& name, const std::vector<std::string>& names) {
  std::string source;
  for (const auto& candidate : names) {
    if (name.starts_with(candidate + ".") && candidate.size() > source.size()) source = candidate;
  }
  return source;
}

}  // namespace

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
      throw ConfigError("metric_for_best_model",
                        "\"" + best.name + "\" is neither better when greater nor when lower. Name another (ece, " +
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
