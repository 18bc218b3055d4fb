// JSON text to rows with exact places, stricter than JSON: one object per row, no duplicate keys, bounded depth and size; and the
// fields of a row.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::data {

using Json = nlohmann::ordered_json;  // templates print fields (tools) in the order of the file

inline constexpr int kMaxJsonDepth = 64;                  ///< levels of objects and arrays, the row itself is 1
inline constexpr std::size_t kMaxJsonFields = 10'000;     ///< of one object: finding one takes time for each
inline constexpr std::size_t kMaxRowBytes = 64ULL << 20;  ///< of a row's text

/// What is wrong with JSON text. offset: of the offending byte from the start of the text, 0-based (the length of the
/// text when it ends too early).
struct JsonProblem {
  std::size_t offset = 0;
  std::string message;
};

/// One row found in a text: an object, or what is wrong with it. It stands at [offset, end).
struct JsonRow {
  Json value;
  std::optional<JsonProblem> problem;
  std::size_t offset = 0;
  std::size_t end = 0;
};

/// Parses `text` as exactly one object.
JsonRow parse_json_row(std::string_view text);

/// Parses `text` as exactly one value of any kind, as strictly as a row.
JsonRow parse_json_value(std::string_view text);

/// Parses `text` as one array and hands over its elements one by one; no more than one is in memory. An element that
/// is not an object, too deep, too long or has a duplicate key is handed over as a problem and the next one follows; text
/// that is not JSON ends the parse and is returned. on_row returns false to stop early.
std::optional<JsonProblem> parse_json_array(std::string_view text, const std::function<bool(JsonRow&&)>& on_row);

/// Our field name -> the name in the file; a field that is not in it has our name.
using FieldMap = std::map<std::string, std::string>;

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
