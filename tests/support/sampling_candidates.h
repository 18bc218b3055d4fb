// What a row of logits may be sampled from, in a form to compare.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "lora_train/generate/generator.h"

namespace lora_train::testing_support {

/// The tokens that may be drawn, most likely first (ties: lowest id first); probabilities sum to 1. temperature > 0,
/// logits [V] finite. Sources: transformers TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper,
/// MinPLogitsWarper.
inline std::vector<kernels::Candidate> candidates(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<kernels::Candidate> list = kernels::sampling_candidates(logits, generate::filter_of(options));
  std::sort(list.begin(), list.end(), [](const kernels::Candidate& a, const kernels::Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  });
  double sum = 0;
  for (const kernels::Candidate& c : list) sum += c.probability;
  for (kernels::Candidate& c : list) c.probability /= sum;
  return list;
}

}  // namespace lora_train::testing_support
