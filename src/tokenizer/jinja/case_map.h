// Upper, lower and title case as Python maps them: one character may become three.
#pragma once

#include <cstdint>
#include <string>

namespace lora_train::tokenizer::jinja {

void append_upper(std::string& out, std::uint32_t code);
void append_title(std::string& out, std::uint32_t code);
/// Whether the character has a case.
bool is_cased(std::uint32_t code);

/// Lower case knows one rule with context: a sigma at the end of a word.
class CaseMapper {
 public:
  explicit CaseMapper(const std::string& text) : text_(text) {}
  /// Of the character at byte `at`, which is `code`.
  void append_lower(std::string& out, std::size_t at, std::uint32_t code) const;

 private:
  bool is_final_sigma(std::size_t at) const;
  const std::string& text_;
};

}  // namespace lora_train::tokenizer::jinja
