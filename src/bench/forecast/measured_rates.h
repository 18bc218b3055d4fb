// The rates with which counted work becomes time: the files that keep measured ones (a JSON object each, docs/bench.md), those that a
// forecast takes, and how far the times of past runs were from what they gave.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/bench/bench.h"
#include "lora_train/bench/forecast/forecast.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/plan/run_spec.h"
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

/// Rates of an H200 with FlashAttention 2 that nobody has measured with this program.
BenchRates assumed_rates();

/// rates-<gpu>-<precision>.json in the user's cache folder; empty if there is no such folder.
std::filesystem::path rates_cache_file(const std::string& gpu, const std::string& precision);

/// Replaces the file atomically. Throws IoError.
void write_rates(const std::filesystem::path& file, const BenchRates& rates);

/// `source` becomes the file's path. Throws FormatError for a file that write_rates did not write, or rates that are not positive,
/// and IoError.
BenchRates read_rates(const std::filesystem::path& file);

/// The rates for a bench: from the requested file; else from the cache if `gpu` is known and the file is there; else assumed.
/// Throws ConfigError if the requested file is of another precision.
BenchRates find_rates(const std::filesystem::path& requested, const std::string& gpu, const std::string& precision);

}  // namespace lora_train::bench
