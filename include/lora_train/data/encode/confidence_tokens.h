// The tokens with which answers say how sure they are (confidence_tokens).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::tokenizer {
class Tokenizer;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

/// In the order of the profile.
struct ConfidenceTokens {
  std::vector<std::string> names;
  std::vector<std::int32_t> ids;
  std::vector<double> probabilities;  ///< of being right, that each states

  bool has(std::int32_t id) const;
  /// Those of a text, left out.
  std::vector<std::int32_t> without(std::span<const std::int32_t> ids_of_text) const;
  /// "<conf_0>, <conf_50>, <conf_100>"
  std::string in_words() const;
};

/// Throws ConfigError("confidence_tokens") for a text that is not one token of the tokenizer.
ConfidenceTokens confidence_tokens(const TaskSection& section, const tokenizer::Tokenizer& tokenizer);

/// The position in `ids` of the one confidence token of an answer [begin, end). Throws DataError (where = source) if there is none, or
/// more than one.
std::size_t find_confidence(std::span<const std::int32_t> ids, std::size_t begin, std::size_t end,
                            const ConfidenceTokens& tokens, const std::string& source);

}  // namespace lora_train::data
