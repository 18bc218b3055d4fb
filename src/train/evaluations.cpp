#include "evaluations.h"

#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/evaluate/evaluate.h"

namespace lora_train::train {

bool Evaluations::is_owed() const {
  const std::int64_t step = run_.state.step;
  const bool is_due_here = step == run_.plan->total_steps() || due_.is_due(step);
  return is_due_here && !run_.data.evals.empty() && run_.state.eval_step != step;
}

void Evaluations::evaluate_all() {
  std::vector<evaluate::EvalResult> results;
  if (document_losses_.empty() && run_.is_leader()) {
    for (const auto& data : run_.data.evals) document_losses_.push_back(evaluate::no_losses_yet(data));
  }
  for (std::size_t i = 0; i < run_.data.evals.size(); ++i) {
    const auto start = Clock::now();
    results.push_back(evaluate::evaluate(run_.eval_context(), run_.data.evals[i], run_.eval_plans[i]));
    const evaluate::EvalResult& result = results.back();
    metrics::EvalRecord record{run_.state.step,
                               result.name,
                               result.loss,
                               result.perplexity,
                               result.token_accuracy,
                               result.num_tokens,
                               std::chrono::duration<double>(Clock::now() - start).count(),
                               result.ece};
    run_.clock->add(metrics::Phase::kEvaluate, record.eval_s);
    record.spans = run_.clock->take_spans();
    record.num_documents = static_cast<long long>(run_.data.evals[i].store.size());
    reporters_.write(record);
    log_info(string_printf("step %lld: %s: loss %.4f, token accuracy %.2f%%, %lld tokens, %.1f s", record.step,
                           result.name.c_str(), result.loss, 100 * result.token_accuracy, result.num_tokens,
                           record.eval_s));
    if (run_.is_leader()) {
      document_losses_[i].step = run_.state.step;
      document_losses_[i].losses = result.document_losses;
    }
  }
  if (results.empty()) return;  // no evaluation sets
  reporters_.write(document_losses_);
  run_.startup.end_phase("evaluation");
  best_.judge(results, run_.state);
}

}  // namespace lora_train::train
