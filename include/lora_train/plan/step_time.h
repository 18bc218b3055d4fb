// How long a step takes at given rates: what `plan` says of GPUs that are not here, and what decide() compares.
#pragma once

#include <cstdint>

#include "lora_train/plan/run_spec.h"
#include "lora_train/plan/step_limits.h"

namespace lora_train::plan {

/// What the busiest rank does in a step.
struct RankLoad {
  double tokens = 0, supervised = 0;
  double keys_per_query = 0;
  std::int64_t num_micro_batches = 1;
};

/// Of attention's FLOPs.
inline constexpr double kForwardOfAttention = 1.0 / 3;

/// Those of a run in this precision, on a GPU with these rates of bf16 products and of memory.
Rates rates_in(const Profile& profile, double gemm_flops_per_s, double copy_bytes_per_s);

/// Seconds that a step needs at these rates at least, without the other ranks: products, attention, memory traffic, recomputation
/// and the decoding of a quantised base, one after the other. Each micro-batch adds launches, and half a round of tiles at the end
/// of each product, in which multiprocessors wait for the last ones.
double least_step_s(const RunFacts& facts, const RunSpec& spec, const Rates& rates, const RankLoad& load);

/// Seconds a token of full rows, at usual rates of a GPU: specs are compared by them on any GPU, since what decides is the ratio of
/// products to memory, which differs little.
double token_s(const RunFacts& facts, const RunSpec& spec);

}  // namespace lora_train::plan
