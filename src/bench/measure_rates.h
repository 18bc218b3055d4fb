// The rates with which counted work becomes time, measured on this device: GEMMs, attention, memory. Times are those between
// events in the stream of a GPU, over work enqueued back to back, GEMMs for at least a second, on random numbers: the clock of a
// GPU falls under load, and falls less over zeros. On a CPU they come from the clock, over a fifth of a second.
#pragma once

#include <algorithm>
#include <cmath>

#include "lora_train/bench/bench.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/plan/tuning/tuning.h"
#include "work_counter.h"

namespace lora_train::bench {

/// The step whose GEMMs and attention are measured.
struct RateCase {
  const model::ModelConfig& config;
  std::int64_t num_tokens = 0, num_supervised = 0;  ///< of a micro-batch
  std::int64_t max_seq_len = 0;
  std::int64_t loss_chunk_bytes = 0;
  at::ScalarType dtype;
};

/// FLOPs per second over every GEMM of a micro-batch without adapters, each as often as it occurs: forward and input gradient of
/// all linears and of the head. `tuning` chooses the algorithms; null: heuristics do.
double measure_gemm_rate(const RateCase& sizes, const plan::RunDevice& device, plan::RunTuning* tuning);

/// All rates of the case, with GPU and date. Attention uses the fastest backend.
BenchRates measure_rates(const RateCase& sizes, const plan::RunDevice& device, plan::RunTuning* tuning);

/// Seconds of a call of body() among calls that follow each other without a pause, for min_s on a GPU, after a warm-up.
template <class Body>
double seconds_back_to_back(const plan::RunDevice& device, double min_s, const Body& body) {
  constexpr double kWarmUpShare = 0.2;
  if (!device.is_cuda()) min_s = 0.2;
  const auto time = [&](int count) {
    Moments moments(device);
    moments.mark();
    for (int i = 0; i < count; ++i) body();
    moments.mark();
    plan::wait_for(device);
    return moments.us_between(0, 1) / 1e6 / count;
  };
  time(1);  // compiles, allocates, chooses algorithms
  const double once = time(1);
  if (once >= min_s) return once;
  const auto count_for = [&](double s) { return static_cast<int>(std::ceil(s / std::max(once, 1e-6))); };
  if (once < kWarmUpShare * min_s) time(count_for(kWarmUpShare * min_s));
  return time(count_for(min_s));
}

}  // namespace lora_train::bench
