#include "step_record.h"

namespace lora_train::train {

metrics::TrainRecord step_record(const Run& run, const data::StepPlan& plan, const StepResult& result, double step_s) {
  const metrics::RunTimes times = run.clock->total();
  metrics::TrainRecord record;
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
  record.time = metrics::now_s();
  record.elapsed_s = run.clock->elapsed_s();
  record.train_s = times[metrics::Phase::kTrain];
  record.cost_usd = times.cost_usd;
  return record;
}

}  // namespace lora_train::train
