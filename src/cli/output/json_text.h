// How values enter the JSON on stdout.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lora_train::cli {

inline nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

/// One line. Bytes that are not UTF-8 become U+FFFD.
inline std::string to_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lora_train::cli
