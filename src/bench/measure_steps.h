// Measures the steps of a bench.
#pragma once

#include "lora_train/bench/bench_request.h"
#include "lora_train/run/run_state.h"

namespace lora_train::bench {

/// Runs the warm-up and the measured steps: their times, losses and memory.
BenchSpeed measure_steps(const BenchRequest& request, run::Run& run);

/// Runs the steps after them: result.speed->idle_share, the times of classes and kernels, and the trace if one is wanted.
void measure_idle_and_classes(const BenchRequest& request, run::Run& run, BenchResult& result);

}  // namespace lora_train::bench
