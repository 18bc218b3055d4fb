#include "rehearsal.h"

#include <c10/util/Exception.h>

#include "memory_plan.h"

namespace lora_train::train {
namespace {

std::int64_t num_tokens_of(const data::DocumentStore& store, const data::MicroBatchPlan& micro) {
  std::int64_t num_tokens = 0;
  for (const auto document : micro.documents) num_tokens += store.num_tokens(document);
  return num_tokens;
}

LargestMicroBatch find_largest(const Run& run) {
  LargestMicroBatch largest;
  for (std::int64_t step = 1; step <= run.plan->total_steps(); ++step) {
    const data::StepPlan plan = run.plan->step(step);
    for (const auto& micro : plan.micro_batches) {
      const std::int64_t num_tokens = num_tokens_of(run.data.train, micro);
      if (num_tokens <= largest.num_tokens) continue;
      largest.num_tokens = num_tokens;
      largest.plan.step = step;
      largest.plan.num_supervised = plan.num_supervised;
      largest.plan.micro_batches = {micro};
    }
  }
  return largest;
}

void rehearse_evaluation(const Run& run) {
  for (std::size_t i = 0; i < run.data.evals.size(); ++i) {
    const data::MicroBatchPlan* largest = nullptr;
    std::int64_t most = -1;
    for (const auto& micro : run.eval_plans[i]) {
      const std::int64_t num_tokens = num_tokens_of(run.data.evals[i].store, micro);
      if (num_tokens > most) {
        largest = &micro;
        most = num_tokens;
      }
    }
    if (largest != nullptr) evaluate(run.eval_context(), run.data.evals[i], {*largest});
  }
}

}  // namespace

const LargestMicroBatch& largest_micro_batch(Run& run) {
  if (!run.largest) run.largest = find_largest(run);
  return *run.largest;
}

std::string rehearse(Run& run) {
  const LargestMicroBatch& largest = largest_micro_batch(run);
  const auto tuned_products = tune_products(run);
  try {
    run.scalars->set_frozen(true);
    ask_for_step(*run.context, largest.plan, build_in_place(run.data.train, largest.plan), 0);
    receive_step(*run.context, largest.plan);
    rehearse_evaluation(run);
    run.scalars->set_frozen(false);
    wait_for(run.device);
  } catch (const c10::OutOfMemoryError& error) {
    throw_out_of_memory(run, error.what_without_backtrace());
  }
  return "the largest micro-batch (step " + std::to_string(largest.plan.step) + ", " + std::to_string(largest.num_tokens) +
         " tokens)";
}

}  // namespace lora_train::train
