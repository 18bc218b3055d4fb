// Chooses a token from logits: temperature, top-k, top-p and min-p, in that order, as transformers' logits processors, then a
// draw from Philox. V vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/config/sampling.h"
#include "lora_train/kernels/sampling/sampling.h"

namespace lora_train::generate {

/// Throws ConfigError naming an option that is out of range.
void check_sampling(const SamplingOptions& options);

/// The options as the kernels take them, and the key of a prompt's draws.
kernels::SamplingFilter filter_of(const SamplingOptions& options);
PhiloxKey sampling_key(std::uint64_t seed, std::int64_t prompt_index);

using kernels::Candidate;

/// The tokens that may be drawn, most likely first (ties: lowest id first); probabilities sum to 1. temperature > 0,
/// logits [V] finite. Sources: transformers TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options);

/// Chooses a token from a row of finite logits. A draw depends only on the seed, the prompt's index, and `position`, the number
/// of new tokens before this one.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t prompt_index,
                          std::int64_t position);

/// log softmax(logits)[id], in fp64.
double log_probability(std::span<const float> logits, std::int32_t id);

}  // namespace lora_train::generate
