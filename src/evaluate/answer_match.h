// Compares an answer with the expected one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lora_train/tokenizer/split/text_pattern.h"

namespace lora_train::evaluate {

/// Removes white space at both ends and commas between digits ("1,234" becomes "1234"); other white space becomes one space.
std::string normalized_answer(const std::string& text);

class AnswerMatcher {
 public:
  /// `regex` empty: compares whole texts. `where` names the flag or key for messages. Throws ConfigError for an invalid regular
  /// expression.
  AnswerMatcher(const std::string& regex, const std::string& where);

  /// The normalized answer in a text; nothing if the regex does not match. An answer that a regex picked also loses a period or
  /// comma after its last digit.
  std::optional<std::string> pick(const std::string& text) const;

 private:
  std::shared_ptr<const tokenizer::TextPattern> pattern_;  ///< null: whole texts
};

}  // namespace lora_train::evaluate
