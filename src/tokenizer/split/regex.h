// The split patterns of tokenizer.json through PCRE2 (UTF-8, Unicode properties, JIT). As in Oniguruma, which Hugging
// Face uses, ^ and $ match at every line; other differences between the two are refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace lora_train::tokenizer {

/// A stretch of a text: a match, or the text between matches.
struct Stretch {
  std::size_t begin, end;
  bool is_match;
};

/// Thread-safe for concurrent const calls.
class Regex {
 public:
  /// `where` appears in messages. FormatError if PCRE2 refuses the pattern.
  Regex(const std::string& pattern, const std::string& where);

  /// Splits all of `text` into stretches like Hugging Face's tokenizers (Oniguruma's iterator): matches may be empty,
  /// but not right after another one. Overwrites `out`. DataError if PCRE2 fails (its limits).
  void split(std::string_view text, std::vector<Stretch>& out) const;

 private:
  std::shared_ptr<pcre2_real_code_8> code_;
  std::string where_;
};

}  // namespace lora_train::tokenizer
