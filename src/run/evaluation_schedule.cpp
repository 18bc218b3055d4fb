#include "evaluation_schedule.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/evaluate/loss_evaluation.h"

namespace lora_train::run {
namespace {

/// -sum(weight * log p) and sum(weight), which add up over datasets.
struct LossSum {
  double loss = 0, weight = 0;
  void add(const evaluate::EvalResult& result) {
    loss += *result.loss * result.weight_sum;
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
    return (*task).*std::ranges::find(report::all_eval_metrics(), metric_.metric, &report::EvalMetric::name)->value;
  }
  LossSum loss;
  double accuracy = 0, ece = 0, tokens = 0;
  for (const auto& result : results.sets) {
    if (!metric_.source.empty() && result.name != metric_.source) continue;
    loss.add(result);
    const auto count = static_cast<double>(result.num_tokens);
    accuracy += *result.token_accuracy * count;
    ece += *result.ece * count;
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
  throw FormatError(checkpoint.string(), "is the best step and should become the result: " + problem +
                                             ". Use the last step instead with --set load_best_model_at_end=false");
}

void forget_best(run_folder::TrainState& state) {
  state.best_metric.reset();
  state.best_eval_loss.reset();
  state.best_step.reset();
  state.evals_without_gain = 0;
}

std::string BestModel::stop_in_words(const run_folder::TrainState& state) const {
  return "early stopping: " + metric_.name + " did not improve in " + count_of(state.evals_without_gain, "evaluation") +
         (state.best_step ? fmt::format("; best at step {}", *state.best_step) : "");
}

EvaluationSchedule::EvaluationSchedule(Run& run, Reporters& reporters)
    : run_(run),
      reporters_(reporters),
      best_(run.profile().run, data::evaluation_names(run.profile().data), run.profile().tasks.eval_tasks),
      due_(run.profile().run.eval_steps, *run.plan) {
  for (const EvalTask& task : run.profile().tasks.eval_tasks) {
    due_of_tasks_.emplace_back();
    if (task.every) due_of_tasks_.back().emplace(*task.every, *run.plan);
  }
}

evaluate::OnMicroBatch EvaluationSchedule::show_progress(const std::string& name) const {
  return [this, name](std::size_t num_done, std::size_t num_micro_batches) {
    reporters_.show_activity({.step = run_.state.step,
                              .total_steps = run_.plan->total_steps(),
                              .elapsed_s = run_.clock->elapsed_s(),
                              .activity = fmt::format("evaluating {} {}/{}", name, num_done, num_micro_batches)});
  };
}

bool EvaluationSchedule::is_due(std::int64_t step) const {
  return due_.is_due(step) ||
         std::ranges::any_of(due_of_tasks_, [&](const auto& due) { return due && due->is_due(step); });
}

bool EvaluationSchedule::is_everything_due() const {
  return run_.state.step == 0 || run_.state.step == run_.plan->total_steps();
}

bool EvaluationSchedule::are_sets_due() const { return is_everything_due() || due_.is_due(run_.state.step); }

std::vector<std::size_t> EvaluationSchedule::due_tasks() const {
  std::vector<std::size_t> tasks;
  for (std::size_t i = 0; i < due_of_tasks_.size(); ++i) {
    const DueSteps& due = due_of_tasks_[i] ? *due_of_tasks_[i] : due_;
    if (is_everything_due() || due.is_due(run_.state.step)) tasks.push_back(i);
  }
  return tasks;
}

bool EvaluationSchedule::is_owed() const {
  if (run_.state.eval_step == run_.state.step) return false;
  return (are_sets_due() && !run_.data.evals.empty()) || !due_tasks().empty();
}

double EvaluationSchedule::end_phase(Clock::time_point start) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  run_.clock->add(report::Phase::kEvaluate, seconds);
  return seconds;
}

void EvaluationSchedule::evaluate_sets(evaluate::Evaluation& results) {
  if (document_losses_.empty() && run_.is_leader()) {
    for (const auto& data : run_.data.evals) document_losses_.push_back(evaluate::no_losses_yet(data));
  }
  for (std::size_t i = 0; i < run_.data.evals.size(); ++i) {
    const auto start = Clock::now();
    results.sets.push_back(evaluate::evaluate(run_.eval_context(show_progress(run_.data.evals[i].name)),
                                              run_.data.evals[i], run_.eval_plans[i]));
    const evaluate::EvalResult& result = results.sets.back();
    const auto num_documents = static_cast<long long>(run_.data.evals[i].store.size());
    const double eval_s = end_phase(start);
    reporters_.write(report::EvalRecord{result, run_.state.step, eval_s, run_.clock->take_spans(), num_documents});
    log_info("step {}: {}: loss {:.4f}, token accuracy {:.2f}%, {} tokens, {:.1f} s", run_.state.step, result.name,
             *result.loss, 100 * *result.token_accuracy, result.num_tokens, eval_s);
    if (run_.is_leader()) {
      document_losses_[i].step = run_.state.step;
      document_losses_[i].losses = result.document_losses;
    }
  }
  if (!results.sets.empty()) reporters_.write(document_losses_);
}

void EvaluationSchedule::evaluate_tasks(const std::vector<std::size_t>& which, evaluate::Evaluation& results) {
  auto start = Clock::now();
  run_.tasks->evaluate(
      run_.task_model(), which, {.num_answers = report::kAnswersPerTask}, [&](evaluate::TaskResult&& result) {
        const double eval_s = end_phase(start);
        start = Clock::now();
        reporters_.write(report::EvalRecord{result, run_.state.step, eval_s, run_.clock->take_spans()});
        std::string line = fmt::format("step {}: {}: {}, {} examples", run_.state.step, result.name, in_words(result),
                                       format_count(result.num_rows));
        if (result.num_cut > 0) line += fmt::format(", {} answers cut", format_count(result.num_cut));
        log_info("{}, {:.1f} s", line, eval_s);
        std::vector<report::EvalAnswer> answers;
        for (auto& [answer, reading] : result.answers) {
          answer.step = run_.state.step;
          answers.push_back(std::move(answer));
        }
        reporters_.write(answers);
        std::erase_if(task_figures_, [&](const auto& task) { return task.name == result.name; });
        task_figures_.push_back(result);
        results.tasks.push_back(std::move(result));
      });
}

void EvaluationSchedule::evaluate() {
  const double before = run_.clock->here(report::Phase::kEvaluate);
  const std::vector<std::size_t> tasks = due_tasks();
  evaluate::Evaluation results;
  if (are_sets_due()) evaluate_sets(results);
  evaluate_tasks(tasks, results);
  if (results.sets.empty() && results.tasks.empty()) return;
  run_folder::TrainState state = run_.state;
  best_.judge(results, state);
  if (best_.has_stopped_improving(state)) {
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < due_of_tasks_.size(); ++i) {
      if (std::ranges::count(tasks, i) == 0) others.push_back(i);
    }
    evaluate_tasks(others, results);
    if (!are_sets_due()) evaluate_sets(results);
  }
  run_.state = std::move(state);
  run_.startup.end_phase("evaluation");
  reporters_.show_activity(
      {.step = run_.state.step, .total_steps = run_.plan->total_steps(), .eval_loss = run_.state.eval_loss});
  warn_of_cost(run_.clock->here(report::Phase::kEvaluate) - before);
}

void EvaluationSchedule::warn_of_cost(double eval_s) {
  const double train_s = run_.clock->here(report::Phase::kTrain);
  if (train_s == 0) return;  // before a step of this process
  evals_after_steps_s_ += eval_s;
  const std::string text = evaluation_cost_in_words(evals_after_steps_s_, train_s);
  if (text.empty() || has_warned_ || is_everything_due()) return;
  has_warned_ = true;
  log_warning(text);
}

std::string evaluation_cost_in_words(double eval_s, double train_s) {
  constexpr double kMostShare = 0.1, kLeastSeconds = 1;
  const double share = eval_s / (eval_s + train_s);
  if (!(share > kMostShare) || eval_s < kLeastSeconds) return {};
  return fmt::format(
      "evaluations take {:.0f}% of the time, {} on top of {} of training. Raise eval_steps or a task's every, or lower "
      "eval_max_samples or a task's max_samples or max_new_tokens",
      100 * share, format_duration(eval_s), format_duration(train_s));
}

}  // namespace lora_train::run
