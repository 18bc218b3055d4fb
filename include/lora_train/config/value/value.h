// A parsed YAML or JSON value with the place it came from. Order of map members is kept.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/mistakes.h"

namespace lora_train {

/// What was read is kNull, kText, kList or kMap (text becomes a number where a field asks for one); what is written
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

/// `value` as YAML in one line (flow style), with quotes where they are needed.
std::string to_flow_yaml(const Value& value);
/// `value` as JSON in one line.
std::string to_json_text(const Value& value);

}  // namespace lora_train
