#include "lora_train/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/base/philox.h"

namespace lora_train::generate {
namespace {

/// The index of the largest logit; the first of equals.
std::size_t most_likely(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

bool is_before(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

/// Keeps the `number` most likely, and those as likely as the last of them.
void keep_largest(std::vector<Candidate>& list, std::size_t number) {
  if (number >= list.size()) return;
  std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(number - 1), list.end(), is_before);
  const double last = list[number - 1].probability;
  list.erase(std::partition(list.begin(), list.end(), [last](const Candidate& c) { return c.probability >= last; }),
             list.end());
}

double sum_of(const std::vector<Candidate>& list) {
  return std::accumulate(list.begin(), list.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.probability; });
}

/// Keeps the most likely, sorted, until their probability reaches top_p. Sorts in parts, so that a few candidates do not cost a
/// sort of the whole vocabulary.
void sort_and_cut(std::vector<Candidate>& list, double top_p) {
  const double wanted = top_p * sum_of(list);
  constexpr std::size_t kFirst = 256;
  double reached = 0;
  std::size_t sorted = 0;
  while (sorted < list.size()) {
    const std::size_t next = std::min(list.size(), std::max(kFirst, 4 * sorted));
    const auto begin = list.begin() + static_cast<std::ptrdiff_t>(sorted),
               end = list.begin() + static_cast<std::ptrdiff_t>(next);
    std::partial_sort(begin, end, list.end(), is_before);
    for (; sorted < next; ++sorted) {
      if (reached >= wanted) return list.resize(sorted);
      reached += list[sorted].probability;
    }
  }
}

/// The candidates after all filters: most likely first with top_k or top_p, else by id. Not normalised; the largest has
/// probability 1.
std::vector<Candidate> kept(std::span<const float> logits, const SamplingOptions& options) {
  const auto largest = static_cast<double>(logits[most_likely(logits)]);
  std::vector<Candidate> list;
  list.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    list.push_back(
        {static_cast<std::int32_t>(i), std::exp((static_cast<double>(logits[i]) - largest) / options.temperature)});
  }
  if (options.top_k > 0) keep_largest(list, static_cast<std::size_t>(options.top_k));
  if (options.top_p < 1) {
    sort_and_cut(list, options.top_p);
  } else if (options.top_k > 0) {
    std::sort(list.begin(), list.end(), is_before);
  }
  std::erase_if(list, [&](const Candidate& c) { return c.probability < options.min_p; });
  return list;
}

/// A uniform number in [0, 1) with 53 random bits.
double uniform_draw(std::uint64_t seed, std::int64_t prompt_index, std::int64_t position) {
  const PhiloxKey key = philox_key(seed, RandomPurpose::kSampling, "", static_cast<std::uint64_t>(prompt_index));
  const auto at = static_cast<std::uint64_t>(position);
  const PhiloxCounter bits =
      philox4x32({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), 0, 0}, key);
  const std::uint64_t all = (std::uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(all >> 11) * 0x1p-53;
}

void check(const char* option, double value, const SamplingRange& range) {
  if (!range.holds(value)) throw ConfigError(option, "is " + std::to_string(value) + "; expected " + range.expected);
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  check("temperature", options.temperature, kTemperatureRange);
  check("top_k", static_cast<double>(options.top_k), kTopKRange);
  check("top_p", options.top_p, kTopPRange);
  check("min_p", options.min_p, kMinPRange);
}

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<Candidate> list = kept(logits, options);
  std::sort(list.begin(), list.end(), is_before);
  const double sum = sum_of(list);
  for (Candidate& c : list) c.probability /= sum;
  return list;
}

std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t prompt_index,
                          std::int64_t position) {
  if (options.temperature == 0) return static_cast<std::int32_t>(most_likely(logits));
  const std::vector<Candidate> list = kept(logits, options);
  const double draw = uniform_draw(options.seed, prompt_index, position) * sum_of(list);
  double reached = 0;
  std::int32_t chosen = 0;
  for (const Candidate& c : list) {
    if (c.probability == 0) continue;
    chosen = c.id;
    reached += c.probability;
    if (draw < reached) break;
  }
  return chosen;
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const auto largest = static_cast<double>(logits[most_likely(logits)]);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest - std::log(sum);
}

}  // namespace lora_train::generate
