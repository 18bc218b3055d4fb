// The profile as JSON Schema, for editors: names, meanings, and what kind of value each takes. The loader is stricter.
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"

namespace lora_train {
namespace {

Value map_value(std::vector<Value::Member> members) {
  Value value;
  value.kind = Value::Kind::kMap;
  value.members = std::move(members);
  return value;
}

Value of_types(const std::vector<const char*>& names) {
  std::vector<Value> types;
  for (const char* const name : names) types.push_back(text_value(name));
  return map_value({{"type", list_value(std::move(types))}});
}

/// The words of "auto | off", or none.
std::vector<std::string> words_of(const std::string& values) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < values.size();) {
    const std::size_t end = std::min(values.find(" | ", at), values.size());
    words.push_back(values.substr(at, end - at));
    if (words.back().find(' ') != std::string::npos) return {};
    at = end + 3;
  }
  return words.size() > 1 ? words : std::vector<std::string>();
}

/// Texts with a variable, which has any value.
Value variable() { return map_value({{"type", text_value("string")}, {"pattern", text_value("\\$\\{")}}); }

/// One of the words; off and on are booleans to some YAML readers.
Value one_of(const std::vector<std::string>& words) {
  std::vector<Value> values = {null_value()};
  bool has_switch = false;
  for (const auto& word : words) {
    const bool is_bool = word == "true" || word == "false" || word == "on" || word == "off";
    if (word != "null" && word != "true" && word != "false") values.push_back(text_value(word));
    has_switch = has_switch || is_bool;
  }
  if (has_switch) values.insert(values.end(), {bool_value(true), bool_value(false)});
  return map_value({{"anyOf", list_value({map_value({{"enum", list_value(std::move(values))}}), variable()})}});
}

/// What a value may be, from the text that documents it; anything where the text has no common form.
Value kind_of(const Field& field) {
  const auto says = [&](const char* text) { return field.values.find(text) != std::string::npos; };
  if (const auto words = words_of(field.values); !words.empty()) return one_of(words);
  if (says("list of") || says("map of") || says("a list") || says("a map")) {
    return of_types({"array", "object", "string", "boolean", "null"});
  }
  if (says("integer") || says("number") || says("time") || says("steps")) {
    return of_types({"number", "string", "boolean", "null"});
  }
  return of_types({"string", "number", "boolean", "null"});
}

Value property_of(const Field& field) {
  Value property = kind_of(field);
  property.members.insert(property.members.begin(),
                          {"description", text_value(field.help + " Values: " + field.values + ".")});
  return property;
}

}  // namespace

std::string profile_schema() {
  std::vector<Value::Member> properties = {
      {"extends",
       map_value({{"description", text_value("Another profile, or a list of them, that this one builds on.")}})}};
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) properties.push_back({field.name, property_of(field)});
  }
  for (const auto& alias : aliases()) {
    properties.push_back({alias.name, map_value({{"description", text_value("Another name of " + alias.key + ".")},
                                                 {"deprecated", bool_value(true)}})});
  }
  for (const auto& idle : idle_keys()) {
    properties.push_back({idle.name, map_value({{"description", text_value("Without effect: " + idle.reason + ".")},
                                                {"deprecated", bool_value(true)}})});
  }
  return to_json_text(map_value({{"$schema", text_value("http://json-schema.org/draft-07/schema#")},
                                 {"title", text_value("lora-train profile")},
                                 {"type", text_value("object")},
                                 {"additionalProperties", bool_value(false)},
                                 {"properties", map_value(std::move(properties))}})) +
         "\n";
}

}  // namespace lora_train
