// Reading the fields of a row, with messages that name the field.
#pragma once

#include <string>

#include "row_format.h"

namespace lora_train::data {

/// What a row calls the field.
std::string name_in(const FieldMap& map, const std::string& field);

/// Whether the field map says that nobody reads the field: {train: null}.
bool is_unread(const FieldMap& map, const std::string& field);

/// The field (by our name), or null when the row does not have it, has null there, or nobody reads it.
const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field);

/// The field; throws DataError if it is missing.
const Json& required(const Json& object, const FieldMap& map, const std::string& field);

/// A string; throws DataError naming `field` when it is something else.
const std::string& string_of(const Json& value, const std::string& field);

/// Throws DataError: "field is a number, expected ...".
[[noreturn]] void wrong_type(const std::string& field, const Json& value, const std::string& expected);

/// Any JSON value inside a string, parsed as strictly as a row; throws DataError naming `field`.
Json inner_json(const std::string& text, const std::string& field);

/// `text` for a message: at most `max_bytes` of it, control characters escaped.
std::string printable(const std::string& text, std::size_t max_bytes);

/// The first keys of a row for a message: "a, b, c".
std::string key_names(const Json& row);

/// How much a row wants a message to count, from the fields train (true, false: 1, 0) and weight (0 or a positive number) of a message; absent or null is nullopt.
/// Throws DataError for other values, for both when they disagree, and for train_detail, which is not supported.
/// `place` names the message: "messages[2]".
std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place);

}  // namespace lora_train::data
