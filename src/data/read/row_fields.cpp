#include "row_fields.h"

#include <cstdio>

#include "lora_train/base/error.h"

namespace lora_train::data {

const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  const auto found = object.find(mapped == map.end() ? field : mapped->second);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& required(const Json& object, const FieldMap& map, const std::string& field) {
  if (const Json* value = optional_field(object, map, field)) {
    return *value;
  }
  const auto mapped = map.find(field);
  const std::string name = mapped == map.end() ? field : mapped->second;
  throw DataError("", "\"" + name + "\" is " + (object.contains(name) ? "null" : "missing"));
}

const std::string& string_of(const Json& value, const std::string& field) {
  if (!value.is_string()) {
    wrong_type(field, value, "a string");
  }
  return value.get_ref<const std::string&>();
}

void wrong_type(const std::string& field, const Json& value, const std::string& expected) {
  throw DataError("", field + " is " + value.type_name() + ", expected " + expected);
}

Json inner_json(const std::string& text, const std::string& field) {
  JsonRow parsed = parse_json_value(text);
  if (parsed.problem) {
    throw DataError("", field + " is string, and its text is refused: " + parsed.problem->message);
  }
  return std::move(parsed.value);
}

std::string printable(const std::string& text, std::size_t max_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += byte == '\n' ? "\\n" : escape;
    } else {
      out += c;
    }
  }
  // A cut must not leave a part of a character.
  if (text.size() > max_bytes) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) {
      out.pop_back();
    }
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0x80) {
      out.pop_back();
    }
    out += "...";
  }
  return out;
}

}  // namespace lora_train::data
