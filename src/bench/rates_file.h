// The file that keeps measured rates: one JSON object, docs/bench.md.
#pragma once

#include <filesystem>

#include "lora_train/bench/bench.h"

namespace lora_train::bench {

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
