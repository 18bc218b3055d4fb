#include "lora_train/data/encode/confidence_tokens.h"

#include <algorithm>
#include <iterator>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {

bool ConfidenceTokens::has(std::int32_t id) const { return std::ranges::count(ids, id) > 0; }

std::vector<std::int32_t> ConfidenceTokens::without(std::span<const std::int32_t> ids_of_text) const {
  std::vector<std::int32_t> rest;
  std::ranges::copy_if(ids_of_text, std::back_inserter(rest), [&](std::int32_t id) { return !has(id); });
  return rest;
}

std::string ConfidenceTokens::in_words() const { return join(names); }

ConfidenceTokens confidence_tokens(const TaskSection& section, const tokenizer::Tokenizer& tokenizer) {
  ConfidenceTokens tokens;
  for (const auto& [name, probability] : section.confidence_tokens) {
    const std::vector<std::int32_t> ids = tokenizer.encode(name).ids;
    if (ids.size() != 1) {
      throw ConfigError("confidence_tokens", "\"" + name + "\" is " + std::to_string(ids.size()) +
                                                 " tokens of the tokenizer, expected one. Name it in add_tokens, or "
                                                 "choose texts that the tokenizer has as one token.");
    }
    tokens.names.push_back(name);
    tokens.ids.push_back(ids.front());
    tokens.probabilities.push_back(probability);
  }
  return tokens;
}

std::size_t find_confidence(std::span<const std::int32_t> ids, std::size_t begin, std::size_t end,
                            const ConfidenceTokens& tokens, const std::string& source) {
  std::size_t place = end;
  for (std::size_t i = begin; i < end; ++i) {
    if (!tokens.has(ids[i])) continue;
    if (place != end) {
      throw DataError(source,
                      "has more than one confidence token in its last answer; expected one of " + tokens.in_words());
    }
    place = i;
  }
  if (place == end)
    throw DataError(source, "has no confidence token in its last answer; expected one of " + tokens.in_words());
  return place;
}

}  // namespace lora_train::data
