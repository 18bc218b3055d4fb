// A user's regular expression that extracts part of a text. PCRE2: UTF-8, Unicode classes; ^ and $ match at the ends of
// the text unless the pattern begins with (?m).
#pragma once

#include <memory>
#include <optional>
#include <string>

struct pcre2_real_code_8;

namespace lora_train::tokenizer {

/// Thread-safe for concurrent const calls.
class TextPattern {
 public:
  /// `where` names the flag. Throws ConfigError if the pattern does not compile.
  TextPattern(const std::string& pattern, const std::string& where);

  /// Returns, from the first match, the first group that took part, or the whole match if the pattern has no group;
  /// nullopt without a match. Throws ConfigError if matching takes too long (nested repeats).
  std::optional<std::string> find(const std::string& text) const;

 private:
  std::shared_ptr<pcre2_real_code_8> code_;
  std::string pattern_, where_;
};

}  // namespace lora_train::tokenizer
