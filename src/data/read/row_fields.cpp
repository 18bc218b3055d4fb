#include "row_fields.h"

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::data {
namespace {

float weight_number(const Json& weight, const std::string& field) {
  constexpr auto kExpected = "0 (not trained) or a positive number";
  if (!weight.is_number()) {
    wrong_type(field, weight, kExpected);
  }
  const auto value = static_cast<float>(weight.get<double>());
  if (weight.get<double>() != 0.0 && !(std::isnormal(value) && value > 0)) {
    throw DataError("", field + " is " + weight.dump() + "; the weight of a turn is " + kExpected +
                            " from 1.2e-38 to 3.4e38. To weight whole datasets, set `weight` in the profile");
  }
  return std::abs(value);  // 0 for -0
}

}  // namespace

std::string name_in(const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  return mapped == map.end() ? field : mapped->second;
}

bool is_unread(const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  return mapped != map.end() && mapped->second.empty();
}

const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field) {
  if (is_unread(map, field)) return nullptr;
  const auto found = object.find(name_in(map, field));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& required(const Json& object, const FieldMap& map, const std::string& field) {
  if (const Json* value = optional_field(object, map, field)) {
    return *value;
  }
  const std::string name = name_in(map, field);
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
      out += byte == '\n' ? "\\n" : string_printf("\\x%02x", byte);
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

std::string key_names(const Json& row) {
  std::vector<std::string> names;
  for (const auto& item : row.items()) {
    if (names.size() < 20) names.push_back(printable(item.key(), 40));
  }
  return join(names);
}

std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place) {
  const Json* train = optional_field(message, map, "train");
  const Json* weight = optional_field(message, map, "weight");
  if (!is_unread(map, "train") && optional_field(message, map, "train_detail") != nullptr) {
    throw DataError("",
                    place + ".train_detail is not supported: a turn is trained whole or not at all (train, weight)");
  }
  if (train != nullptr && !train->is_boolean()) {
    wrong_type(place + ".train", *train, "true or false");
  }
  std::optional<float> value;
  if (weight != nullptr) value = weight_number(*weight, place + ".weight");
  if (train == nullptr) return value;
  if (value && train->get<bool>() != (*value > 0)) {
    throw DataError("",
                    place + ": train is " + train->dump() + " and weight is " + weight->dump() + "; keep one of them");
  }
  return value.value_or(train->get<bool>() ? 1.0F : 0.0F);
}

}  // namespace lora_train::data
