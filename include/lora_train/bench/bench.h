// `bench`: counts and measures a training step of a known shape.
#pragma once

#include "lora_train/bench/bench_request.h"

namespace lora_train::bench {

/// Counts the work of a step of a shape and, unless count_only is set, measures it. Throws Error.
BenchResult run_bench(const BenchRequest& request);

}  // namespace lora_train::bench
