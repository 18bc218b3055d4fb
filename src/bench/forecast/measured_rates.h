// The rates that turn counted work into time: files of measured rates (a JSON object each, docs/bench.md), the rates of
// a forecast, and the deviation of past runs from their planned times.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
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
  double low = 1, high = 1;  ///< least and largest ratio, at least 5% away from it (15% for a single run)
  int num_runs = 0;
};

/// Measured / planned time of past runs, by GPU and precision, which differ in the losses besides the products.
using PastRatios = std::map<std::pair<std::string, Precision>, std::vector<double>>;

/// Nothing without runs.
std::optional<Calibration> calibration_of(const PastRatios& past, const std::string& gpu, Precision precision);

/// The rates of products in the run's precision, of attention and of memory: measured ones if `bench --measure-rates`
/// has stored them for this GPU, else those of the table. Throws ConfigError for a CPU without stored rates.
BenchRates rates_of(const device::GpuFacts& gpu, const Profile& profile);

/// Assumed rates of an H200 with FlashAttention 2, not measured with this program.
BenchRates assumed_rates();

/// rates-<gpu>-<precision>.json in the user's cache folder; empty if there is no such folder.
std::filesystem::path rates_cache_file(const std::string& gpu, const std::string& precision);

/// Replaces the file atomically. Throws IoError.
void write_rates(const std::filesystem::path& file, const BenchRates& rates);

/// Sets `source` to the file's path. Throws FormatError for a file that write_rates did not write or for rates that are
/// not positive, and IoError.
BenchRates read_rates(const std::filesystem::path& file);

/// The rates for a bench: from the requested file; else from the cache if `gpu` is known and the file exists; else
/// assumed. Throws ConfigError if the requested file has another precision.
BenchRates find_rates(const std::filesystem::path& requested, const std::string& gpu, const std::string& precision);

}  // namespace lora_train::bench
