#include "best_model.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::train {
namespace {

const std::vector<std::string> kMetrics = {"loss", "perplexity", "token_accuracy", "ece"};

[[noreturn]] void refuse_metric(const std::string& name, const std::vector<data::NamedStore>& eval_sets) {
  std::vector<std::string> sets;
  for (const auto& set : eval_sets) sets.push_back(set.name);
  std::vector<std::string> known = {"eval_loss", "perplexity", "token_accuracy", "ece"};
  for (const auto& set : sets) known.push_back(set + ".loss");
  const std::string nearest = nearest_name(name, known);
  throw ConfigError(
      "metric_for_best_model",
      "no evaluation has \"" + name + "\"." + (nearest.empty() ? "" : " Did you mean \"" + nearest + "\"?") +
          " Expected eval_loss, perplexity, token_accuracy or ece, or one of them for a data set, as NAME.loss" +
          (sets.empty() ? "." : "; the sets are: " + join(sets) + "."));
}

/// -sum(weight * log p) and sum(weight), which add up over data sets.
struct LossSum {
  double loss = 0, weight = 0;
  double mean() const { return loss / weight; }
};

}  // namespace

BestModel::BestModel(const RunSection& section, const std::vector<data::NamedStore>& eval_sets)
    : name_(section.metric_for_best_model),
      metric_(name_),
      patience_(section.early_stopping_patience),
      threshold_(section.early_stopping_threshold) {
  for (const auto& set : eval_sets) {  // whose names may have dots
    if (name_.starts_with(set.name + ".") && set.name.size() > set_.size()) set_ = set.name;
  }
  if (!set_.empty()) metric_ = name_.substr(set_.size() + 1);
  if (metric_.starts_with("eval_")) metric_ = metric_.substr(5);
  if (std::ranges::count(kMetrics, metric_) == 0) refuse_metric(name_, eval_sets);
  greater_is_better_ = section.greater_is_better.value_or(metric_ == "token_accuracy");
}

double BestModel::value_of(const std::vector<evaluate::EvalResult>& results) const {
  LossSum loss;
  double accuracy = 0, ece = 0, tokens = 0;
  for (const auto& result : results) {
    if (!set_.empty() && result.name != set_) continue;
    loss.loss += result.loss * result.weight_sum;
    loss.weight += result.weight_sum;
    const auto count = static_cast<double>(result.num_tokens);
    accuracy += result.token_accuracy * count;
    ece += result.ece * count;
    tokens += count;
  }
  if (metric_ == "loss") return loss.mean();
  if (metric_ == "perplexity") return std::exp(loss.mean());
  return (metric_ == "ece" ? ece : accuracy) / tokens;
}

void BestModel::judge(const std::vector<evaluate::EvalResult>& results, checkpoint::TrainState& state) const {
  LossSum loss;
  for (const auto& result : results) {
    loss.loss += result.loss * result.weight_sum;
    loss.weight += result.weight_sum;
  }
  state.eval_step = state.step;
  state.eval_loss = loss.mean();
  if (state.step == 0) return;
  state.best_eval_loss = std::min(state.best_eval_loss.value_or(*state.eval_loss), *state.eval_loss);
  const double value = value_of(results);
  const double gain = state.best_metric ? std::abs(value - *state.best_metric) : 0;
  const bool is_best = !state.best_metric || is_better(value, *state.best_metric);
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

void forget_best(checkpoint::TrainState& state) {
  state.best_metric.reset();
  state.best_eval_loss.reset();
  state.best_step.reset();
  state.evals_without_gain = 0;
}

std::string BestModel::stop_in_words(const checkpoint::TrainState& state) const {
  return "early stopping: " + name_ + " no better in " + std::to_string(state.evals_without_gain) +
         (state.evals_without_gain == 1 ? " evaluation" : " evaluations") +
         (state.best_step ? "; best at step " + std::to_string(*state.best_step) : "");
}

}  // namespace lora_train::train
