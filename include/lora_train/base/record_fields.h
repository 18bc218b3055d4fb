// One list of fields per record: its writer, its reader and its tables go through it.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>

namespace lora_train {

/// What is written for an empty optional or list.
enum class IfEmpty {
  kKeep,  ///< null, or an empty list
  kOmit,  ///< no key
  kLater  ///< as kKeep; older files lack the key
};

/// A key in JSON and its member.
template <typename Record, typename Value>
struct Field {
  const char* key;
  Value Record::*member;
  IfEmpty if_empty = IfEmpty::kKeep;
};

template <typename Record, typename Value>
constexpr Field<Record, Value> field(const char* key, Value Record::*member, IfEmpty if_empty = IfEmpty::kKeep) {
  return {key, member, if_empty};
}

/// The fields of a record in the order of its file, as a std::tuple; each record with such a list specialises it.
template <typename Record>
constexpr auto record_fields() = delete;

template <typename Record, typename Visit>
void for_each_field(const Visit& visit) {
  std::apply([&](const auto&... fields) { (visit(fields), ...); }, record_fields<Record>());
}

template <typename Value>
constexpr bool is_optional = false;
template <typename Value>
constexpr bool is_optional<std::optional<Value>> = true;

/// Adds the fields to an object of nlohmann's, which writes a double so that it reads back with the same bits, and a
/// non-finite one as null.
template <typename Json, typename Record>
void put_fields(Json& object, const Record& record) {
  for_each_field<Record>([&](const auto& field) {
    const auto& value = record.*field.member;
    using Type = std::remove_cvref_t<decltype(value)>;
    if constexpr (is_optional<Type>) {
      if (value || field.if_empty != IfEmpty::kOmit) object[field.key] = value ? Json(*value) : Json(nullptr);
    } else if constexpr (requires { value.empty(); }) {
      if (!value.empty() || field.if_empty != IfEmpty::kOmit) object[field.key] = value;
    } else {
      object[field.key] = value;
    }
  });
}

/// Reads what put_fields() wrote. Throws Json::exception for a missing key, unless its field may lack one, and for
/// another type.
template <typename Json, typename Record>
void get_fields(const Json& object, Record& record) {
  for_each_field<Record>([&](const auto& field) {
    auto& value = record.*field.member;
    using Type = std::remove_cvref_t<decltype(value)>;
    if (field.if_empty != IfEmpty::kKeep && !object.contains(field.key)) return;
    const Json& written = object.at(field.key);
    if constexpr (is_optional<Type>) {
      using Known = typename Type::value_type;
      value = written.is_null() ? std::nullopt : std::optional(written.template get<Known>());
    } else {
      written.get_to(value);
    }
  });
}

}  // namespace lora_train
