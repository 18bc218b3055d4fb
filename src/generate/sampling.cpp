#include "lora_train/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lora_train/base/error.h"

namespace lora_train::generate {
namespace {

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

kernels::SamplingFilter filter_of(const SamplingOptions& options) {
  return {options.temperature, options.top_k, options.top_p, options.min_p};
}

PhiloxKey sampling_key(std::uint64_t seed, std::int64_t prompt_index) {
  return philox_key(seed, RandomPurpose::kSampling, "", static_cast<std::uint64_t>(prompt_index));
}

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<Candidate> list = kernels::sampling_candidates(logits, filter_of(options));
  std::sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  });
  double sum = 0;
  for (const Candidate& c : list) sum += c.probability;
  for (Candidate& c : list) c.probability /= sum;
  return list;
}

std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t prompt_index,
                          std::int64_t position) {
  const double draw = kernels::sampling_draw(sampling_key(options.seed, prompt_index), position);
  return kernels::sample_token(logits, filter_of(options), draw);
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest - std::log(sum);
}

}  // namespace lora_train::generate
