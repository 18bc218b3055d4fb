// `check --keys` and `check --schema`.

#include "lora_train/config/keys/reference.h"

#include <algorithm>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"

namespace lora_train {
namespace {

std::string default_of(const Field& field) {
  return field.default_text.empty() ? to_flow_yaml(field.write(Profile{})) : field.default_text;
}

std::string resume_text(OnResume on_resume) {
  if (on_resume == OnResume::kFree) return "yes";
  return on_resume == OnResume::kMayGrow ? "may be raised" : "no";
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

/// Matches texts with a variable, which may have any value.
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

/// Schema of a value, from its documentation; allows anything if that has no common form.
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
                          {"description", text_value(fmt::format("{} Values: {}.", field.help, field.values))});
  return property;
}

}  // namespace

std::vector<std::string> profile_keys() { return field_names(); }

std::vector<KnownName> known_names() {
  std::vector<KnownName> names;
  for (const Field* field : all_fields())
    names.push_back({field->name, field->values.starts_with("true | false"), field->takes_commas});
  for (const Alias* alias : aliases()) {
    names.push_back({alias->name, alias->meaning.starts_with("true = "),
                     alias->meaning.empty() && find_field(alias->key)->takes_commas});
  }
  for (const RefusedName& key : refused_names()) names.push_back({key.name, key.is_switch});
  return names;
}

std::string keys_table(const std::string& filter) {
  std::string out;
  for (const auto& group : field_groups()) {
    std::string rows;
    for (const auto& field : group.fields) {
      if (field.name.find(filter) == std::string::npos) continue;
      rows += fmt::format("  {} (default {}): {}\n      {}\n", field.name, default_of(field), field.values, field.help);
    }
    if (!rows.empty()) out += fmt::format("{}{}\n{}", out.empty() ? "" : "\n", group.title, rows);
  }
  return out;
}

std::string other_names_table(const std::string& filter) {
  std::string out;
  for (const Alias* alias : aliases()) {
    if (alias->name.find(filter) != std::string::npos)
      out += fmt::format("  {}: is read as {}\n", alias->name, alias->key);
  }
  return out.empty() ? out : "Names of other trainers\n" + out;
}

std::string keys_json(const std::string& filter) {
  std::string out;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      if (field.name.find(filter) == std::string::npos) continue;
      const Value line = map_value({{"key", text_value(field.name)},
                                    {"group", text_value(group.title)},
                                    {"default", text_value(default_of(field))},
                                    {"values", text_value(field.values)},
                                    {"help", text_value(field.help)},
                                    {"on_resume", text_value(resume_text(field.on_resume))}});
      out += to_json_text(line) + "\n";
    }
  }
  return out;
}

std::string profile_schema() {
  std::vector<Value::Member> properties = {
      {"extends",
       map_value({{"description", text_value("Another profile, or a list of them, that this one builds on.")}})}};
  for (const Field* field : all_fields()) properties.push_back({field->name, property_of(*field)});
  for (const Alias* alias : aliases()) {
    properties.push_back({alias->name, map_value({{"description", text_value("Another name of " + alias->key + ".")},
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
