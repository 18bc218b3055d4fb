// Parses JSON text into examples with exact places, more strictly than JSON: one object per example, no duplicate keys,
// bounded depth and size. An integer beyond 64 bits, and NaN and Infinity, which Python writes, stop only what reads
// them: they are binary values, or null for NaN and Infinity as a whole column. Also reads the fields of an example.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::data {

using Json = nlohmann::ordered_json;  // templates print fields (tools) in file order

inline constexpr int kMaxJsonDepth = 64;               ///< nesting of objects and arrays; the example itself is 1
inline constexpr std::size_t kMaxJsonFields = 10'000;  ///< per object: finding one takes time for each
inline constexpr std::size_t kMaxExampleBytes = 64ULL << 20;  ///< size of an example's text

/// A problem in JSON text. offset: that of the offending byte from the start of the text, 0-based (the length of the
/// text if it ends too early).
struct JsonProblem {
  std::size_t offset = 0;
  std::string message;
};

/// One example found in a text: an object, or its problem. It occupies [offset, end).
struct JsonExample {
  Json value;
  std::optional<JsonProblem> problem;
  std::size_t offset = 0;
  std::size_t end = 0;
};

/// Parses `text` as exactly one object.
JsonExample parse_json_example(std::string_view text);

/// Parses `text` as exactly one value of any kind, as strictly as an example.
JsonExample parse_json_value(std::string_view text);

/// Parses `text` as one array and passes on its elements one by one; at most one is in memory. An element that is not
/// an object, is too deep or too long, or has a duplicate key is passed on as a problem, and parsing continues; invalid
/// JSON ends the parse and is returned.
std::optional<JsonProblem> parse_json_array(std::string_view text,
                                            const std::function<void(JsonExample&&)>& on_example);

/// Our field name -> the name in the file; a field that is not listed keeps our name.
using FieldMap = std::map<std::string, std::string>;

/// The example's name for the field.
std::string name_in(const FieldMap& map, const std::string& field);

/// True if the field map disables the field: {train: null}.
bool is_unread(const FieldMap& map, const std::string& field);

/// The field (by our name), or null if the example lacks it, it is null, or it is disabled.
const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field);

/// The field; throws DataError if it is missing.
const Json& required(const Json& object, const FieldMap& map, const std::string& field);

/// A string; throws DataError naming `field` if it is something else.
const std::string& string_of(const Json& value, const std::string& field);

/// Throws DataError: "field is a number, expected ...".
[[noreturn]] void wrong_type(const std::string& field, const Json& value, const std::string& expected);

/// Throws DataError naming `field` for an integer beyond 64 bits, NaN or Infinity anywhere in `value`.
void refuse_bad_numbers(const Json& value, const std::string& field);

/// Any JSON value inside a string, parsed as strictly as an example; throws DataError naming `field`.
Json inner_json(const std::string& text, const std::string& field);

/// `text` for a message: at most `max_bytes`, with control characters escaped.
std::string printable(const std::string& text, std::size_t max_bytes);

/// The first keys of an example for a message: "a, b, c".
std::string key_names(const Json& example);

/// Fields of a message, ours and other trainers', that say if it is trained: true or 1, false or 0. `masked` says the
/// opposite.
inline constexpr const char* kTurnMarks[] = {"train", "loss", "training", "trainable", "masked", "loss_mask"};

/// The loss weight that a message asks for, from the first of kTurnMarks that it has (1 or 0) and `weight` (0 or a
/// positive number); nullopt without any, or if all are null. Throws DataError for other values, for a contradiction,
/// and for train_detail, which is not supported. `place` names the message: "messages[2]".
std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place);

}  // namespace lora_train::data
