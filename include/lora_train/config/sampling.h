// Sampling options and their ranges (generate/generator.h implements them).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace lora_train {

/// The distribution that a token is drawn from. Temperature 0 takes the most likely token (the lowest id among equals),
/// and the other options have no effect.
struct SamplingOptions {
  double temperature = 0;  ///< 0 = greedy; else divides the logits
  std::int64_t top_k = 0;  ///< keeps the k most likely, and ties with the last of them; 0 = all
  double top_p = 1;        ///< keeps the most likely until their probability reaches this; 1 = all
  double min_p = 0;        ///< keeps those with at least this share of the largest probability; 0 = all
  std::uint64_t seed = 0;
};

/// The valid values of an option.
struct SamplingRange {
  const char* expected;         ///< in words
  bool (*holds)(double value);  ///< false for NaN
};
inline constexpr SamplingRange kTemperatureRange = {
    "0 (greedy) or a finite number > 0", [](double t) { return t >= 0 && t <= std::numeric_limits<double>::max(); }};
inline constexpr SamplingRange kTopKRange = {"a whole number from 0 (all) to 2147483647",
                                             [](double k) { return k >= 0 && k <= 2147483647 && k == std::floor(k); }};
inline constexpr SamplingRange kTopPRange = {"a number above 0, at most 1 (all)",
                                             [](double p) { return p > 0 && p <= 1; }};
inline constexpr SamplingRange kMinPRange = {"a number from 0 (all) to 1", [](double p) { return p >= 0 && p <= 1; }};

/// Calls visit(name, member, range) for every option but the seed, in the order in which they are listed.
template <class Visit>
void for_each_sampling_option(const Visit& visit) {
  visit("temperature", &SamplingOptions::temperature, kTemperatureRange);
  visit("top_p", &SamplingOptions::top_p, kTopPRange);
  visit("top_k", &SamplingOptions::top_k, kTopKRange);
  visit("min_p", &SamplingOptions::min_p, kMinPRange);
}

}  // namespace lora_train
