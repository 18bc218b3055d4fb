// A template as tokens: literal text between tags, and the words of tags. Applies white space control (trim_blocks,
// lstrip_blocks, "-" and "+") as configured by Hugging Face.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;  ///< strings: unescaped
  int line;
};

/// `name` appears in messages. FormatError (name:line).
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace lora_train::tokenizer::jinja
