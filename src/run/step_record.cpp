#include "step_record.h"

namespace lora_train::run {

report::TrainRecord step_record(const Run& run, const data::StepPlan& plan, const StepResult& result, double step_s) {
  const report::RunTimes times = run.clock->total();
  report::TrainRecord record;
  record.step = plan.step;
  record.epoch = plan.epoch_after;
  record.loss = result.loss;
  record.supervised_tokens = plan.num_supervised;
  record.grad_norm = result.grad_norm;
  record.learning_rate = result.learning_rate;
  if (run.profile().optimizer.kind == OptimizerKind::kAdamw8bit)
    record.optim_zero_second_moments = result.zeroed_moments;
  record.tokens = plan.num_tokens;
  record.num_documents = plan.num_documents;
  record.tokens_per_s = static_cast<double>(plan.num_tokens) / step_s;
  record.step_ms = step_s * 1000;
  record.time = report::now_s();
  record.elapsed_s = run.clock->elapsed_s();
  record.train_s = times[report::Phase::kTrain];
  record.cost_usd = times.cost_usd;
  return record;
}

void take_times(const report::RunTimes& times, run_folder::TrainState& state) {
  state.phases_s = times.named();
  state.cost_usd = times.cost_usd;
  state.cpu_s = times.usage.cpu_s;
  state.energy_wh = times.usage.energy_wh;
  state.gpu_watched_s = times.usage.gpu_watched_s;
  state.gpu_busy_s = times.usage.gpu_busy_s;
}

report::RunTimes times_of(const run_folder::TrainState& state) {
  return report::RunTimes::of(state.phases_s, state.cost_usd,
                              {state.cpu_s, state.energy_wh, state.gpu_watched_s, state.gpu_busy_s});
}

report::ProgressState progress_after(const Run& run, const data::StepPlan& plan, std::int64_t num_steps,
                                     std::int64_t num_tokens) {
  const double train_s = run.clock->here(report::Phase::kTrain);
  report::ProgressState progress;
  progress.step = plan.step;
  progress.total_steps = run.plan->total_steps();
  progress.loss = run.state.loss_sum / run.state.loss_weight;
  progress.steps_per_s = static_cast<double>(num_steps) / train_s;
  progress.tokens_per_s = static_cast<double>(num_tokens) / train_s;
  progress.eta_s = static_cast<double>(progress.total_steps - progress.step) / progress.steps_per_s;
  progress.cost_usd = run.clock->total().cost_usd;
  progress.elapsed_s = run.clock->elapsed_s();
  progress.epoch = plan.epoch_after;
  progress.eval_loss = run.state.eval_loss;
  progress.gpu_utilization = run.resources->gpu_utilization();
  return progress;
}

}  // namespace lora_train::run
