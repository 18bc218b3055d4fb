// Choosing a token from logits: temperature, top-k, top-p, min-p as transformers' logits processors, in that order, and
// a draw from Philox. V vocabulary.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace lora_train::generate {

/// Which distribution a token is drawn from. With temperature 0 the most likely token is taken (the lowest id of equals),
/// and the rest means nothing.
struct SamplingOptions {
  double temperature = 0;    ///< 0 = greedy; else logits are divided by it
  std::int64_t top_k = 0;    ///< the k most likely stay, and what is as likely as the last of them; 0 = all
  double top_p = 1;          ///< the most likely stay until their probability reaches this; 1 = all
  double min_p = 0;          ///< stay with at least this share of the largest probability; 0 = all
  std::uint64_t seed = 0;
};

/// What an option may be.
struct SamplingRange {
  const char* expected;         ///< in words
  bool (*holds)(double value);  ///< false for NaN
};
inline constexpr SamplingRange kTemperatureRange = {
    "0 (greedy) or a finite number above", [](double t) { return t >= 0 && t <= std::numeric_limits<double>::max(); }};
inline constexpr SamplingRange kTopKRange = {"a whole number from 0 (all) to 2147483647",
                                             [](double k) { return k >= 0 && k <= 2147483647 && k == std::floor(k); }};
inline constexpr SamplingRange kTopPRange = {"a number above 0, at most 1 (all)", [](double p) { return p > 0 && p <= 1; }};
inline constexpr SamplingRange kMinPRange = {"a number from 0 (all) to 1", [](double p) { return p >= 0 && p <= 1; }};

/// Throws ConfigError naming the option that is out of its range.
void check_sampling(const SamplingOptions& options);

struct Candidate {
  std::int32_t id = 0;
  double probability = 0;
};

/// What may be drawn, most likely first (of equals the lowest id first); probabilities sum to 1. temperature > 0,
/// logits [V] finite. Sources: transformers TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options);

/// The token for a row of finite logits. A draw is a function of the seed, the prompt's index and the position of the
/// token among the new ones, and of nothing else.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t prompt_index,
                          std::int64_t position);

/// log softmax(logits)[id], in fp64.
double log_probability(std::span<const float> logits, std::int32_t id);

}  // namespace lora_train::generate
