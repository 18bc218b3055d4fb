#include "best_model.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::run {
namespace {

/// -sum(weight * log p) and sum(weight), which add up over data sets.
struct LossSum {
  double loss = 0, weight = 0;
  void add(const evaluate::EvalResult& result) {
    loss += result.loss * result.weight_sum;
    weight += result.weight_sum;
  }
  double mean() const { return loss / weight; }
};

}  // namespace

BestModel::BestModel(const RunSection& section, const std::vector<std::string>& eval_sets,
                     const std::vector<EvalTask>& tasks)
    : metric_(report::find_best_metric(section, eval_sets, tasks)),
      patience_(section.early_stopping_patience),
      threshold_(section.early_stopping_threshold) {}

std::optional<double> BestModel::value_of(const evaluate::Evaluation& results) const {
  if (metric_.is_of_task) {
    const auto task = std::ranges::find(results.tasks, metric_.source, &evaluate::TaskResult::name);
    if (task == results.tasks.end()) return std::nullopt;
    const std::vector<report::TaskMetric> known = report::task_metrics(task->kind);
    return task->figures.*std::ranges::find(known, metric_.metric, &report::TaskMetric::name)->value;
  }
  LossSum loss;
  double accuracy = 0, ece = 0, tokens = 0;
  for (const auto& result : results.sets) {
    if (!metric_.source.empty() && result.name != metric_.source) continue;
    loss.add(result);
    const auto count = static_cast<double>(result.num_tokens);
    accuracy += result.token_accuracy * count;
    ece += result.ece * count;
    tokens += count;
  }
  if (loss.weight == 0) return std::nullopt;
  if (metric_.metric == "loss") return loss.mean();
  if (metric_.metric == "perplexity") return std::exp(loss.mean());
  return (metric_.metric == "ece" ? ece : accuracy) / tokens;
}

void BestModel::judge(const evaluate::Evaluation& results, run_folder::TrainState& state) const {
  LossSum loss;
  for (const auto& result : results.sets) loss.add(result);
  state.eval_step = state.step;
  if (loss.weight > 0) state.eval_loss = loss.mean();
  if (state.step == 0) return;
  if (loss.weight > 0)
    state.best_eval_loss = std::min(state.best_eval_loss.value_or(*state.eval_loss), *state.eval_loss);
  const std::optional<double> value = value_of(results);
  if (!value) return;
  const double gain = state.best_metric ? std::abs(*value - *state.best_metric) : 0;
  const bool is_best = !state.best_metric || is_better(*value, *state.best_metric);
  const bool counts = is_best && (!state.best_metric || gain > threshold_);
  state.evals_without_gain = counts ? 0 : state.evals_without_gain + 1;
  if (!is_best) return;
  state.best_metric = value;
  state.best_step = state.step;
}

void refuse_best_checkpoint(const std::filesystem::path& checkpoint, const std::string& problem) {
  throw FormatError(checkpoint.string(), "is the best step, which the result is to be made of: " + problem +
                                             ". --set load_best_model_at_end=false makes it of the last step");
}

void forget_best(run_folder::TrainState& state) {
  state.best_metric.reset();
  state.best_eval_loss.reset();
  state.best_step.reset();
  state.evals_without_gain = 0;
}

std::string BestModel::stop_in_words(const run_folder::TrainState& state) const {
  return "early stopping: " + metric_.name + " no better in " + count_of(state.evals_without_gain, "evaluation") +
         (state.best_step ? "; best at step " + std::to_string(*state.best_step) : "");
}

}  // namespace lora_train::run
