// A run without files: synthetic documents and a known shape with random weights, created on the device.
#pragma once

#include <memory>

#include "lora_train/bench/bench.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/run/run_state.h"

namespace lora_train::bench {

/// Not movable, because the run refers to the request.
struct BenchRun {
  BenchRun(const BenchRequest& requested, bool starts_device, const std::function<void(run::Run&)>& build);
  BenchRun(const BenchRun&) = delete;
  BenchRun& operator=(const BenchRun&) = delete;

  run::TrainRequest request;
  run::Run run;
};

/// Builds a run that is ready to train steps 1 to num_warm_up + num_steps + kProfiledSteps. Defaults for keys that are
/// `auto` or not given: rows of 2048 tokens; one micro-batch per step, as large as memory allows, up to 16384 tokens.
std::unique_ptr<BenchRun> build_bench_run(const BenchRequest& request);

/// The same on the meta device, where steps compute nothing, with the sizes and recomputation of `like`. If `like` is
/// null: 16384 tokens per micro-batch, and no recomputation unless the profile sets it.
std::unique_ptr<BenchRun> build_meta_run(const BenchRequest& request, const BenchRun* like);

/// The sizes of a step: tokens, and keys per query.
plan::StepLoad sizes_of(const run::Run& run, const data::StepPlan& plan);

/// Steps after the timed ones, for profiling.
constexpr std::int64_t kProfiledSteps = 3;

}  // namespace lora_train::bench
