// Values from JSON, and to JSON as Python writes it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "value.h"

namespace lora_train::tokenizer::jinja {

/// DataError if nested deeper than Value::kMaxDepth or with an integer beyond 64 bits. Every string in it gets the
/// origin; at the top level of a message, role and content have their own.
Value from_json(const nlohmann::ordered_json& json, Origin origin = kTemplate, int depth = 0);
Value message_from_json(const nlohmann::ordered_json& json, int message);
/// What a key of a message stands for.
Field field_named(std::string_view key);

/// How json.dumps of Python is asked to write.
struct JsonStyle {
  std::optional<std::string> indent = {};  ///< of one level; none = one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false, sort_keys = false;
};
Text to_json(const Value& value, const JsonStyle& style = {});

}  // namespace lora_train::tokenizer::jinja
