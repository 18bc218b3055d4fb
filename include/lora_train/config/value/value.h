// Parses YAML (and JSON, which is YAML) into values with their places, reads scalars as numbers and words, and follows
// paths. Keeps the order of map members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/value/findings.h"

namespace lora_train {

/// A value that was read is kNull, kText, kList or kMap (text becomes a number if a field needs one); a value to write
/// may also be kBool or kNumber, which differ from kText in having no quotes.
struct Value {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;
  bool quoted = false;
  std::vector<Value> items;
  struct Member;
  std::vector<Member> members;
  Place place;

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kText || kind == Kind::kBool || kind == Kind::kNumber; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }
  /// The member of that name, or nullptr.
  const Value* find(const std::string& name) const;
  Value* find(const std::string& name);
  /// The text of the member of that name; `otherwise` if there is none, or if it is null, a list or a map.
  std::string text_of(const std::string& name, const std::string& otherwise = "") const;
};

struct Value::Member {
  std::string name;
  Value value;
};

Value null_value();
Value bool_value(bool value);
Value integer_value(long long value);
/// The shortest text that reads back as the same double; PyYAML reads it as a number too ("0.0002", "1.0e-8").
Value number_value(double value);
Value text_value(std::string text);
Value list_value(std::vector<Value> items);
Value map_value(std::vector<Value::Member> members);

/// The items of a list; none of null, and one of another value.
std::vector<Value> items_of(const Value& value);
/// The names in a list, or in a text with commas, without empty ones.
std::vector<std::string> names_in(const Value& value);

/// `value` as YAML in one line (flow style), with quotes where they are needed.
std::string to_flow_yaml(const Value& value);
/// `value` as JSON in one line.
std::string to_json_text(const Value& value);

/// One step: a member by name, an item by index, or a new item at the end.
struct PathStep {
  std::string name;  ///< empty for an index
  std::size_t index = 0;
  bool is_append = false;
  bool is_name() const { return !name.empty(); }
};

/// nullopt if `path` does not have that form. The first step is always a name.
std::optional<std::vector<PathStep>> parse_setting_path(const std::string& path);

/// Sets the place that steps[first..] name inside `root`; null becomes a map or a list if one is needed, and a single
/// value becomes a list of one. Returns the problem, or an empty text.
std::string set_at(Value& root, const std::vector<PathStep>& steps, std::size_t first, const Value& value);

/// true, on, yes / false, off, no in any case.
std::optional<bool> parse_bool(const std::string& text);

/// A finite decimal number with optional exponent, without '_' between digits, and with nothing before or after it.
std::optional<double> parse_number(const std::string& text);

/// An integer, also as "1e3" or "200.0".
std::optional<std::int64_t> parse_integer(const std::string& text);

/// Seconds: "90", "90s", "10m", "2h30m", "1d".
std::optional<double> parse_duration(const std::string& text);

/// "10m", "2h30m", "45s"; parse_duration reads it back.
std::string duration_text(double seconds);

/// Parses one document; an empty one is null. `place.file` names it in places and messages; a `place.line` above 0 is
/// the line of all values (a --set has no lines of its own). `<<: *base` and `<<: [*first, *second]` add the members
/// that the map does not have itself, with their own lines. Throws ConfigError for bad syntax, tabs as indentation, a
/// repeated key in a map, a key that is not text, more than one document, more than 10,000 values or nesting that the
/// parser refuses.
Value parse_yaml(const std::string& text, const Place& place);

}  // namespace lora_train
