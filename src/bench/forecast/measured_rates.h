// The time of a step: counted, and corrected by what past runs measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/bench/bench.h"
#include "lora_train/bench/forecast/forecast.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/plan/step_time.h"

namespace lora_train::bench {

struct Calibration {
  double factor = 1;         ///< the median of measured / planned time
  double low = 1, high = 1;  ///< the least and the largest, at least 5% from it; of a single run 15%
  int num_runs = 0;
};

/// By GPU and precision: what is lost beside the products differs between them.
class Calibrations {
 public:
  /// ratio: measured / planned time of a run.
  void add(const std::string& gpu, Precision precision, double ratio);
  /// Null without runs.
  const Calibration* find(const std::string& gpu, Precision precision) const;

 private:
  using Key = std::pair<std::string, Precision>;
  std::map<Key, std::vector<double>> ratios_;
  std::map<Key, Calibration> calibrations_;
};

/// The rates of products in the run's precision, of attention and of memory: measured ones where `bench --measure-rates` has kept
/// some for this GPU, else those of the table. Throws ConfigError for a CPU of which none are kept.
BenchRates rates_of(const device::GpuFacts& gpu, const Profile& profile);

/// Seconds that the sum of so many fp32 gradients takes over a ring of GPUs. 0 for one.
double all_reduce_s(const device::GpuFacts& gpu, int num_gpus, std::int64_t num_parameters);

/// Seconds in which the base evaluates so many tokens.
double least_evaluation_s(const plan::RunFacts& facts, const BenchRates& rates, const plan::RankLoad& load);

}  // namespace lora_train::bench
