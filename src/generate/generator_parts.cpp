#include "generator_parts.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "lora_train/base/error.h"

namespace lora_train::generate {

std::string name_of(const Prompt& prompt) {
  return prompt.name.empty() ? "prompt " + std::to_string(prompt.index) : prompt.name;
}

std::int64_t length_of(const Prompt& prompt) {
  return static_cast<std::int64_t>(prompt.ids.size()) + prompt.max_new_tokens;
}

bool Completions::append(std::size_t prompt, std::int32_t id) {
  Completion& completion = all_[prompt];
  completion.ids.push_back(id);
  const auto& [prompts, options, callbacks, num_cached] = request_;
  const bool wants_more = !callbacks.on_token || callbacks.on_token(prompt, id);
  if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end()) {
    completion.reason = StopReason::kStopToken;
  } else if (static_cast<std::int64_t>(completion.ids.size()) >= prompts[prompt].max_new_tokens) {
    completion.reason = StopReason::kLength;
  } else if (!wants_more) {
    completion.reason = StopReason::kCaller;
  } else {
    return true;
  }
  return false;
}

void Completions::end(std::size_t prompt) {
  if (request_.callbacks.on_done) request_.callbacks.on_done(prompt, all_[prompt]);
}

void check_sequence(const model::ModelConfig& config, const SequenceInput& sequence) {
  if (sequence.ids.empty()) throw DataError(sequence.name, "the prompt is empty; expected at least one token");
  if (sequence.num_new < 1) {
    throw DataError(sequence.name, "max_new_tokens is " + std::to_string(sequence.num_new) + "; expected 1 or more");
  }
  for (const std::int32_t id : sequence.ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    throw DataError(sequence.name, "token id " + std::to_string(id) + " is not in the model's vocabulary of " +
                                       std::to_string(config.vocab_size) +
                                       "; use the tokenizer that belongs to the model");
  }
  const auto length = static_cast<std::int64_t>(sequence.ids.size());
  const std::int64_t most = config.context_length();
  if (length + sequence.num_new <= most) return;
  const std::string advice =
      length < most ? "; shorten the prompt, or lower max_new_tokens to " + std::to_string(most - length) + " or less"
                    : "; shorten the prompt";
  throw DataError(sequence.name, "the prompt has " + std::to_string(length) + " tokens, plus up to " +
                                     std::to_string(sequence.num_new) + " new ones, but the model supports " +
                                     std::to_string(most) + " (max_position_embeddings)" + advice);
}

void reserve_cache(GeneratorParts& parts, const std::vector<std::int64_t>& lengths) {
  parts.left = {};
  std::vector<std::int64_t> rooms;
  for (const std::int64_t length : lengths) rooms.push_back(room_for(length));
  std::sort(rooms.begin(), rooms.end(), std::greater<>());
  if (rooms.empty()) return;
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  model::check_rope_supported(parts.config, longest);
  const auto together = std::min(rooms.size(), static_cast<std::size_t>(parts.limits.max_sequences));
  const std::int64_t wanted =
      std::accumulate(rooms.begin(), rooms.begin() + static_cast<std::ptrdiff_t>(together), std::int64_t{0});
  const std::int64_t allowed = parts.limits.cache_bytes / cache_bytes_per_token(parts.config, parts.decoder.dtype());
  parts.decoder.reserve(std::max(rooms.front(), std::min(wanted, allowed)), longest);
  parts.stats.cache_bytes = parts.decoder.cache().bytes();
}

void reserve_for_conversation(GeneratorParts& parts, std::int64_t length) {
  model::check_rope_supported(parts.config, length);
  const auto most = static_cast<std::uint64_t>(room_for(parts.config.supported_length()));
  const auto allowed =
      static_cast<std::uint64_t>(parts.limits.cache_bytes / cache_bytes_per_token(parts.config, parts.decoder.dtype()));
  const std::uint64_t doubled = std::bit_ceil(static_cast<std::uint64_t>(room_for(length)));
  const auto tokens = static_cast<std::int64_t>(std::min(most, std::max(allowed, doubled)));
  const std::int64_t before = parts.decoder.cache().capacity;
  parts.decoder.reserve(tokens, tokens);
  if (parts.decoder.cache().capacity != before) parts.left = {};
  parts.stats.cache_bytes = parts.decoder.cache().bytes();
}

std::int64_t reserve_for_requests(GeneratorParts& parts) {
  parts.left = {};
  const std::int64_t context = parts.config.supported_length();
  const std::int64_t allowed =
      parts.limits.cache_bytes / cache_bytes_per_token(parts.config, parts.decoder.dtype()) / room_for(1) * room_for(1);
  const std::int64_t capacity = std::clamp(allowed, room_for(1), room_for(context) * parts.limits.max_sequences);
  const std::int64_t longest = std::min(context, capacity);
  parts.decoder.reserve(capacity, longest);
  parts.stats.cache_bytes = parts.decoder.cache().bytes();
  return longest;
}

std::int64_t num_reusable(const CachedTokens& left, const Prompt& prompt, bool use_adapter) {
  if (left.use_adapter != use_adapter) return 0;
  const std::size_t most = std::min(left.ids.size(), prompt.ids.size() - 1);
  const auto end = prompt.ids.begin() + static_cast<std::ptrdiff_t>(most);
  return std::mismatch(prompt.ids.begin(), end, left.ids.begin()).first - prompt.ids.begin();
}

void refuse_logits(const std::string& name, std::int64_t position) {
  throw NumericError(name, "the logits after token " + std::to_string(position) +
                               " are not finite (NaN or infinity). Check the base model and the adapter: one of "
                               "them may be damaged, or values overflow in this precision (try precision: fp32)");
}

bool are_finite(std::span<const float> logits) {
  constexpr std::uint32_t kExponent = 0x7F800000u;
  std::uint32_t num_wrong = 0;
  for (const float logit : logits) num_wrong += (std::bit_cast<std::uint32_t>(logit) & kExponent) == kExponent ? 1 : 0;
  return num_wrong == 0;
}

void check_logits(std::span<const float> logits, const std::string& name, std::int64_t position) {
  if (!are_finite(logits)) refuse_logits(name, position);
}

}  // namespace lora_train::generate
