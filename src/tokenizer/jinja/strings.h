// String functions and case conversion that track where bytes come from. Characters are Unicode code points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lora_train/base/utf8.h"
#include "value.h"

namespace lora_train::tokenizer::jinja {

/// kTitle: Python's str.title(). kWordBegins: Jinja's filter title.
enum class Case { kUpper, kLower, kTitle, kCapitalize, kWordBegins };

/// Python's str.isspace().
bool is_space(std::uint32_t code);
/// Strips white space, or the characters of `chars`.
Text strip(const Text& text, const std::optional<std::string>& chars, bool left, bool right);
/// At most `limit` cuts (< 0: no limit), optionally counted from the right.
List split_by(const Text& text, const std::string& separator, std::int64_t limit, bool from_right);
List split_by_space(const Text& text, std::int64_t limit, bool from_right);
List split_lines(const Text& text, bool keep_ends);
Text change_case(const Text& text, Case to);
/// At most `limit` replacements (< 0: no limit).
Text replace(const Text& text, const std::string& old, const Text& with, std::int64_t limit);
Text join_texts(const List& items, const Text& separator);
std::size_t count_of(const std::string& text, const std::string& needle);
/// Charges for a search, whose time may be the product of both sizes.
void spend_search(std::size_t text_size, std::size_t needle_size);

void append_upper(std::string& out, std::uint32_t code);
void append_title(std::string& out, std::uint32_t code);
/// True if the character has a case.
bool is_cased(std::uint32_t code);

/// Lower case has one context rule: a sigma at the end of a word.
class CaseMapper {
 public:
  explicit CaseMapper(const std::string& text) : text_(text) {}
  /// Appends the lower case of the character at byte `at`, which is `code`.
  void append_lower(std::string& out, std::size_t at, std::uint32_t code) const;

 private:
  bool is_final_sigma(std::size_t at) const;
  const std::string& text_;
};

/// text % values.
Value percent_format(const Text& text, const Value& values);
/// text.format(...).
Value brace_format(const Text& text, const Arguments& arguments);

}  // namespace lora_train::tokenizer::jinja
