#include "lora_train/run/rehearsal.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/tuning/tuning.h"
#include "lora_train/run/train_step.h"
#include "rank_agreement.h"

namespace lora_train::run {
namespace {

const std::string kNoMemoryToCapture = "not enough memory to capture the steps: ";

/// While it lives, steps involve this rank alone: ranks rehearse, capture and tune with different batches, at their own
/// pace.
class Alone {
 public:
  explicit Alone(Run& run) : run_(run), ranks_(run.context->ranks) { run.context->ranks = &alone_; }
  ~Alone() { run_.context->ranks = ranks_; }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  evaluate::EvalContext eval_context() {
    return {*run_.model.decoder, *run_.activations, *run_.loss_head, *run_.feed, alone_};
  }

 private:
  Run& run_;
  ranks::Communicator* ranks_;
  ranks::OneRank alone_;
};

/// A step of this micro-batch only, with the weight sum of the step it belongs to.
data::StepPlan step_of(const data::StepPlan& plan, const data::MicroBatchPlan& micro) {
  data::StepPlan step;
  step.step = plan.step;
  step.num_supervised = plan.num_supervised;
  step.weight_sum = plan.weight_sum;
  step.micro_batches = {micro};
  return step;
}

LargestMicroBatch find_largest(const Run& run) {
  LargestMicroBatch largest;
  for (std::int64_t step = 1; step <= data::num_surveyed_steps(*run.plan); ++step) {
    const data::StepPlan plan = run.plan->step(step);
    for (const auto& micro : plan.micro_batches) {
      const std::int64_t num_tokens = data::shape_of(run.data.train, micro).num_tokens;
      if (num_tokens <= largest.num_tokens) continue;
      largest.num_tokens = num_tokens;
      largest.plan = step_of(plan, micro);
    }
  }
  if (largest.plan.micro_batches.empty()) {  // fewer rows than ranks: this one has none
    const data::StepPlan first = run.plan->step(1);
    largest.plan = step_of(first, first.micro_batches.front());
  }
  return largest;
}

void rehearse_evaluation(const Run& run, const evaluate::EvalContext& context) {
  for (std::size_t i = 0; i < run.data.evals.size(); ++i) {
    const auto num_tokens = [&](const data::MicroBatchPlan& micro) {
      return data::shape_of(run.data.evals[i].store, micro).num_tokens;
    };
    const auto largest = std::ranges::max_element(run.eval_plans[i], {}, num_tokens);
    if (largest != run.eval_plans[i].end()) evaluate::evaluate(context, run.data.evals[i], {*largest});
  }
}

/// One step per batch class, of one micro-batch of that class.
std::map<int, data::StepPlan> examples_of_classes(const Run& run) {
  std::map<int, data::StepPlan> examples;
  for (std::int64_t step = 1; step <= data::num_surveyed_steps(*run.plan) && examples.size() < run.batch_classes.size();
       ++step) {
    const data::StepPlan plan = run.plan->step(step);
    for (const auto& micro : plan.micro_batches) {
      const int index = data::find_batch_class(run.batch_classes, data::shape_of(run.data.train, micro));
      if (index >= 0 && !examples.contains(index)) examples[index] = step_of(plan, micro);
    }
  }
  return examples;
}

model::Batch put_example(Run& run, int class_index, const data::StepPlan& example) {
  model::Batch batch = run.feed->put(*build_in_place(run.data.train, example)(), class_index);
  batch.dropout.keys = run.scalars->dropout_keys();
  return batch;
}

/// Why not to capture the steps of this run; empty if they should be captured.
std::string reason_against_capture(const Run& run) {
  if (!kernels::can_capture()) return "the run is on a CPU";
  if (run.profile().run.cuda_graphs == CudaGraphs::kOff) return "cuda_graphs is off";
  if (objective_for(run.profile().objective.loss_type).enqueue_loss_chunk == nullptr) {
    return fmt::format("loss_type {} cannot be captured", to_string(run.profile().objective.loss_type));
  }
  return run.batch_classes.empty() ? "no micro-batch fits a batch class" : "";
}

/// Captures the graphs for the run's batch classes. Returns why that failed, or an empty string. Leaves the steps
/// frozen. Throws c10::OutOfMemoryError.
std::string record(Run& run) {
  const Alone alone(run);
  try {
    std::map<int, model::Batch> batches;
    for (const auto& [class_index, example] : examples_of_classes(run)) {
      const auto tuned_products = plan::tune_products(run.tuning.get());
      run.scalars->set_frozen(true);
      train_step(*run.context, example, build_in_place(run.data.train, example));
      wait_for_step(*run.context, example);
      batches.emplace(class_index, put_example(run, class_index, example));
    }
    run.context->graphs = std::make_unique<StepGraphs>(*run.context, batches);
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

/// The one place where a capture ends, successful or not: re-enables updates and releases the memory of discarded
/// graphs.
void end_capture(Run& run) {
  plan::wait_for(run.device);  // throws here if the device has failed
  run.scalars->set_frozen(false);
  run.context->is_updating = false;
  if (run.context->graphs == nullptr) plan::release_unused_memory(run.device);
}

void run_without_graphs(Run& run, const std::string& reason) {
  run.capture = {false, reason};
  log_warning("cuda_graphs: steps run without graphs. " + reason);
}

/// capture_steps(), but throws c10::OutOfMemoryError.
void capture_in_memory(Run& run) {
  report::StepCapture& capture = run.capture;
  capture = {false, reason_against_capture(run)};
  if (!capture.reason.empty()) return;
  const auto start = Clock::now();
  try {
    capture.reason = record(run);
  } catch (const c10::OutOfMemoryError&) {
    end_capture(run);
    throw;
  }
  end_capture(run);
  if (!capture.reason.empty()) return run_without_graphs(run, capture.reason);
  capture.recorded = true;
  if (run.num_unpadded > 0) {
    capture.reason = fmt::format("{} of {} micro-batches fit no batch class and run without graphs", run.num_unpadded,
                                 run.num_micro_batches);
  }
  std::string sizes;
  for (const auto& c : run.batch_classes) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", c.num_tokens);
  log_info("cuda_graphs: captured the steps for micro-batches of {} tokens in {} ms{}", sizes,
           std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count(),
           capture.reason.empty() ? "" : "; " + capture.reason);
}

/// Runs the largest micro-batches and returns a description of them. Throws c10::OutOfMemoryError.
std::string rehearse_in_memory(Run& run) {
  const LargestMicroBatch& largest = largest_micro_batch(run);
  const auto tuned_products = plan::tune_products(run.tuning.get());
  Alone alone(run);
  run.scalars->set_frozen(true);
  train_step(*run.context, largest.plan, build_in_place(run.data.train, largest.plan));
  wait_for_step(*run.context, largest.plan);
  rehearse_evaluation(run, alone.eval_context());
  run.scalars->set_frozen(false);
  plan::wait_for(run.device);
  return fmt::format("the largest micro-batch (step {}, {} tokens)", largest.plan.step, largest.num_tokens);
}

std::string in_words(const plan::RunSpec& spec) {
  return fmt::format("{}, recomputation {}, {}", count_of(spec.micro_batch_size, "row"),
                     model::describe_recompute(spec.recompute), format_bytes(spec.memory.total()));
}

/// The most that a rank which ran out of memory may plan for next.
std::int64_t lower_budget(const Run& run) {
  constexpr std::int64_t kLess = std::int64_t{3} << 29;  // 1.5 GiB
  const std::int64_t own = plan::device_memory(run.device).allocated;
  return std::min(run.spec.memory.total() - kLess, plan::memory_budget(run.device) + own);
}

/// If a rank has run out of memory (`failure` says how, for this one), all ranks plan for less and free their buffers.
/// Returns false and changes nothing if no rank has, or if no `auto` value could make the run fit. A step keeps its
/// rows.
bool plan_for_less(Run& run, const std::string& failure) {
  std::int64_t budget = run.facts.memory_bytes;
  std::string first;
  const std::int64_t own_budget = failure.empty() ? budget : lower_budget(run);
  const auto answers = run.ranks().all_gather(fmt::format("{} {}", own_budget, failure));
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    std::size_t end = 0;
    budget = std::min<std::int64_t>(budget, std::stoll(answers[rank], &end));
    const std::string text = answers[rank].substr(end + 1, answers[rank].find(". GPU ") - end - 1);
    if (first.empty() && !text.empty()) first = (answers.size() > 1 ? fmt::format("rank {}: ", rank) : "") + text;
  }
  if (first.empty()) return false;
  plan::RunFacts facts = run.facts;
  facts.memory_bytes = budget;
  facts.resume.global_batch_size = run.spec.global_batch_size;
  const auto planned = plan::decide_if_fits(facts);
  if (!planned) return false;
  if (run.is_leader()) {
    log_warning("out of GPU memory before step 1, though the plan fits ({}): {}. Planning once more, for {}: {}",
                in_words(run.spec), first, format_bytes(budget), in_words(*planned));
  }
  run.facts.memory_bytes = facts.memory_bytes;
  run.facts.resume = facts.resume;
  release_buffers(run);
  return true;
}

}  // namespace

const LargestMicroBatch& largest_micro_batch(Run& run) {
  if (!run.largest) run.largest = find_largest(run);
  return *run.largest;
}

void release_buffers(Run& run) {
  plan::wait_for(run.device);
  run.context.reset();
  run.scalars.reset();
  run.optimizer.reset();
  run.feed.reset();
  run.loss_head.reset();
  run.activations.reset();
  run.model.decoder.reset();
  run.model.weights.reset();
  run.model.parameters.reset();
  run.batch_classes.clear();
  run.num_micro_batches = run.num_unpadded = 0;
  run.largest.reset();
  if (!run.is_leader()) run.tuning.reset();
  plan::release_unused_memory(run.device);
}

void capture_steps(Run& run) {
  try {
    capture_in_memory(run);
  } catch (const c10::OutOfMemoryError& error) {
    run_without_graphs(run, kNoMemoryToCapture + error.what_without_backtrace());
  }
}

std::string prepare_steps(Run& run, const std::function<void()>& rebuild, bool captures) {
  for (bool is_first = true;; is_first = false) {
    if (!run.is_leader()) share_tuning(run);
    std::string rehearsed, failure;
    try {
      rehearsed = rehearse_in_memory(run);
      run.end_phase("rehearsal", report::Phase::kTune);
      if (captures) capture_in_memory(run);
    } catch (const c10::OutOfMemoryError& error) {
      failure = error.what_without_backtrace();
    }
    if (captures) run.end_phase("capture", report::Phase::kTune);
    if (run.is_leader()) share_tuning(run);
    if (is_first && plan_for_less(run, failure)) {
      rebuild();
      continue;
    }
    if (rehearsed.empty()) plan::throw_out_of_memory(run.facts, run.spec, run.device, failure);
    if (!failure.empty()) run_without_graphs(run, kNoMemoryToCapture + failure);
    if (!run.tuning) return rehearsed;
    run.tuning->finish();
    run.spec.algorithms = run.state.tuning = run.tuning->text();
    run.end_phase("tuning", report::Phase::kTune);
    return rehearsed;
  }
}

}  // namespace lora_train::run
