// What `bench` found, for people and for programs.
#pragma once

#include <string>

#include "lora_train/bench/bench_request.h"

namespace lora_train::cli {

/// One object, in one line.
std::string bench_json(const bench::BenchResult& result);

/// Tables: sizes, speed, classes of kernels against what a step has to move, limits; `details`: each kernel and every pass
/// over activations too.
std::string bench_table(const bench::BenchResult& result, bool details);

}  // namespace lora_train::cli
