// Reading the fields of a row, with messages that name the field.
#pragma once

#include <string>

#include "row_format.h"

namespace lora_train::data {

/// The field (by our name), or null when the row does not have it or has null there.
const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field);

/// The field; throws DataError when it is missing.
const Json& required(const Json& object, const FieldMap& map, const std::string& field);

/// A string; throws DataError naming `field` when it is something else.
const std::string& string_of(const Json& value, const std::string& field);

/// Throws DataError: "field is a number, expected ...".
[[noreturn]] void wrong_type(const std::string& field, const Json& value, const std::string& expected);

/// JSON of any kind that stands in a string, read as strictly as a row; throws DataError naming `field`.
Json inner_json(const std::string& text, const std::string& field);

/// `text` for a message: at most `max_bytes` of it, control characters escaped.
std::string printable(const std::string& text, std::size_t max_bytes);

}  // namespace lora_train::data
