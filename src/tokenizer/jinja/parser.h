// Tokens to a syntax tree.
#pragma once

#include <string>
#include <string_view>

#include "ast.h"

namespace lora_train::tokenizer::jinja {

struct ParsedTemplate {
  Block body;
  bool has_generation = false;  ///< whether it has {% generation %}
};

/// FormatError (name:line) for bad syntax, for statements, filters and tests that are not supported, and for nesting
/// deeper than 64.
ParsedTemplate parse(std::string_view source, const std::string& name);

}  // namespace lora_train::tokenizer::jinja
