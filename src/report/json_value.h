// Reads values from untrusted JSON: a missing value, or one of another type, is empty.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lora_train::report {

inline std::optional<double> number_of(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// A plausible count: 0 to 10^15.
inline std::optional<long long> whole_number_of(const nlohmann::ordered_json& object, const char* key) {
  const auto number = number_of(object, key);
  if (!number || !(*number >= 0 && *number <= 1e15)) return std::nullopt;
  return static_cast<long long>(*number);
}

inline std::string text_of(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
}

}  // namespace lora_train::report
