// A template as tokens: literal text between tags, and the words of tags. White space control is done here
// (trim_blocks, lstrip_blocks, "-" and "+"), as Hugging Face drives Jinja.
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
