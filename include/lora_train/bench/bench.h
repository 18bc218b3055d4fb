// `bench`: a training step of a known shape, counted and measured.
#pragma once

#include "lora_train/bench/bench_request.h"

namespace lora_train::bench {

/// Counts a step of a shape, and measures it unless asked not to. Throws Error.
BenchResult run_bench(const BenchRequest& request);

}  // namespace lora_train::bench
