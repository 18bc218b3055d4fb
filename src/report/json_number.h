// Writes numbers to JSON, for metrics.jsonl and summary.json.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace lora_train::report {

/// null for an empty value. nlohmann writes a double with enough digits to read back the same bits, and a non-finite one as
/// null.
template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

inline nlohmann::ordered_json or_null(const std::string& value) {
  return value.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(value);
}

/// Writes 3 instead of 3.0.
inline nlohmann::ordered_json whole_or_number(double value) {
  const bool is_whole = value >= -9e15 && value <= 9e15 && value == static_cast<double>(static_cast<long long>(value));
  return is_whole ? nlohmann::ordered_json(static_cast<long long>(value)) : nlohmann::ordered_json(value);
}

/// One line of JSON. Bytes that are not UTF-8, as in some paths, become U+FFFD instead of ending the run.
inline std::string to_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lora_train::report
