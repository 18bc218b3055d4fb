// String functions that keep track of where bytes come from. Characters are Unicode code points.
#pragma once

#include <optional>
#include <string>

#include "value.h"

namespace lora_train::tokenizer::jinja {

enum class Case { kUpper, kLower, kTitle, kCapitalize };

/// White space, or the characters of `chars`.
Text strip(const Text& text, const std::optional<std::string>& chars, bool left, bool right);
/// At most `limit` cuts (< 0: no limit), counted from the right if asked for.
List split_by(const Text& text, const std::string& separator, std::int64_t limit, bool from_right);
List split_by_space(const Text& text, std::int64_t limit, bool from_right);
List split_lines(const Text& text);
/// The result is the template's own, unless nothing changed.
Text change_case(const Text& text, Case to);
/// At most `limit` times (< 0: no limit). `replacement` must be a string.
Text replace(const Text& text, const std::string& old, const Value* replacement, std::int64_t limit);
Text join_texts(const List& items, const Text& separator);
std::size_t count_of(const std::string& text, const std::string& needle);

}  // namespace lora_train::tokenizer::jinja
