#include "lora_train/tokenizer/split/text_pattern.h"

#include <pcre2.h>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"
#include "regex.h"

namespace lora_train::tokenizer {

struct TextPattern::Code {
  pcre2_code* compiled = nullptr;
  std::string pattern, where;
  ~Code() { pcre2_code_free(compiled); }
};

TextPattern::TextPattern(const std::string& pattern, const std::string& where) : code_(std::make_unique<Code>()) {
  if (find_invalid_utf8(pattern)) throw ConfigError(where, "the regular expression is not valid UTF-8.");
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->pattern = pattern;
  code_->where = where;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->compiled == nullptr) {
    throw ConfigError(where, "\"" + pattern + "\" is not a regular expression: " + pcre2_message(error) +
                                 " at offset " + std::to_string(offset) + ".");
  }
}

TextPattern::~TextPattern() = default;

std::optional<std::string> TextPattern::find(const std::string& text) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_->compiled, nullptr), &pcre2_match_data_free);
  const int num_groups =
      pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), nullptr);
  if (num_groups == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (num_groups < 0) {
    throw ConfigError(code_->where, "\"" + code_->pattern + "\" gives up on a text of " + std::to_string(text.size()) +
                                        " bytes: " + pcre2_message(num_groups) + ". Write it without nested repeats.");
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  int group = 0;
  for (int i = 1; i < num_groups && group == 0; ++i) {
    if (ends[2 * i] != PCRE2_UNSET) group = i;
  }
  return text.substr(ends[2 * group], ends[2 * group + 1] - ends[2 * group]);
}

}  // namespace lora_train::tokenizer
