// How long a step takes on a GPU that is not here.
#pragma once

#include <cstdint>

#include "lora_train/bench/bench_request.h"
#include "lora_train/bench/forecast/forecast_request.h"
#include "lora_train/plan/step_time.h"

namespace lora_train::bench {

/// The rates of products in the run's precision, of attention and of memory: measured ones where `bench --measure-rates` has kept
/// some for this GPU, else those of the table. Throws ConfigError for a CPU of which none are kept.
BenchRates rates_of(const device::GpuFacts& gpu, const Profile& profile);

/// Seconds that the sum of so many fp32 gradients takes over a ring of GPUs. 0 for one.
double all_reduce_s(const device::GpuFacts& gpu, int num_gpus, std::int64_t num_parameters);

/// Seconds in which the base evaluates so many tokens.
double least_evaluation_s(const plan::RunFacts& facts, const BenchRates& rates, const plan::RankLoad& load);

}  // namespace lora_train::bench
