// A run without files: a known shape with random weights made on the device, and documents made up.
#pragma once

#include <memory>

#include "lora_train/bench/bench_request.h"
#include "lora_train/planner/memory_plan.h"
#include "lora_train/train/run_state.h"
#include "step_limits.h"

namespace lora_train::bench {

/// Not movable: the run points to the request.
struct BenchRun {
  explicit BenchRun(const BenchRequest& asked);
  BenchRun(const BenchRun&) = delete;
  BenchRun& operator=(const BenchRun&) = delete;

  train::TrainRequest request;
  train::Run run;
};

/// Ready for train_step, steps 1 to num_warm_up + num_steps and some more for the profile. Keys of the profile that are
/// `auto` or not given: rows of 2048 tokens, one micro-batch a step, as large as memory takes up to 16384 tokens.
std::unique_ptr<BenchRun> build_bench_run(const BenchRequest& request);

/// The same on the meta device, with the sizes and recomputation of `like`; null: 16384 tokens a micro-batch, and nothing
/// recomputed where the profile does not say. Its steps compute nothing.
std::unique_ptr<BenchRun> build_meta_run(const BenchRequest& request, const BenchRun* like);

/// Token and keys per query of a step.
StepSizes sizes_of(const train::Run& run, const data::StepPlan& plan);

/// Steps after those that are timed, for the profile.
constexpr std::int64_t kProfiledSteps = 3;

}  // namespace lora_train::bench
