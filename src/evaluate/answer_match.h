// Whether an answer is the expected one.
#pragma once

#include <optional>
#include <string>

#include "lora_train/tokenizer/text_pattern.h"

namespace lora_train::evaluate {

/// White space at the ends goes, other white space becomes one space, commas between digits go ("1,234" is "1234").
std::string normalized_answer(const std::string& text);

class AnswerMatcher {
 public:
  /// `regex` empty: whole texts are compared. Throws ConfigError (--exact-match) for what is no regular expression.
  explicit AnswerMatcher(const std::string& regex);

  /// The normalized answer in a text; what a regex has picked also loses a full stop or comma behind its last digit.
  /// Nothing where the regex finds nothing.
  std::optional<std::string> pick(const std::string& text) const;

 private:
  std::optional<tokenizer::TextPattern> pattern_;
};

}  // namespace lora_train::evaluate
