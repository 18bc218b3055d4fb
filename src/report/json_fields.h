// Writes and reads the fields of metrics.jsonl and summary.json.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lora_train/base/record_fields.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/report/run_log.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

/// null for an empty value. nlohmann writes a double with enough digits to read back the same bits, and a non-finite
/// one as null.
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

inline std::vector<std::string> texts_of(const nlohmann::ordered_json& object, const char* key) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return texts;
  for (const nlohmann::ordered_json& text : *found) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  return texts;
}

/// Reads the numbers, texts and lists of texts that put_fields() wrote; skips a missing value, or one of another type.
template <typename Record>
void read_fields(const nlohmann::ordered_json& object, Record& record) {
  for_each_field<Record>([&](const auto& field) {
    auto& value = record.*field.member;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, long long>) {
      value = whole_number_of(object, field.key).value_or(value);
    } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
      value = number_of(object, field.key);
    } else if constexpr (std::is_same_v<Value, double>) {
      value = number_of(object, field.key).value_or(value);
    } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
      value = texts_of(object, field.key);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      value = text_of(object, field.key);
    }
  });
}

nlohmann::ordered_json to_object(const StepRecord& record);
nlohmann::ordered_json to_object(const EvalRecord& record);

/// Adds kind of task, metrics, and number of tokens or examples.
void put_figures(nlohmann::ordered_json& object, const EvalFigures& figures);

inline nlohmann::ordered_json to_object(const NamedSeconds& seconds) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : seconds) object[name] = value;
  return object;
}

/// Writes the keys with the sums of a run.
inline void put_times(nlohmann::ordered_json& object, const RunTimes& times) {
  object["phases_s"] = to_object(times.named());
  object["cost_usd"] = or_null(times.cost_usd);
  put_fields(object, times.usage);
}

/// Writes the keys with the GPU price of a run.
inline void put_price(nlohmann::ordered_json& object, const std::optional<Price>& price) {
  object["gpu_price_per_hour"] = price ? whole_or_number(price->of_gpu) : nlohmann::ordered_json(nullptr);
  object["price_source"] = or_null(price ? price->source : "");
}

inline std::optional<NamedSeconds> seconds_of(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return std::nullopt;
  NamedSeconds seconds;
  for (const auto& [name, value] : found->items()) {
    if (value.is_number()) seconds.emplace_back(name, value.get<double>());
  }
  return seconds;
}

/// Reads what put_times() wrote; empty for other objects.
inline std::optional<RunTimes> times_of(const nlohmann::ordered_json& object) {
  const auto phases = seconds_of(object, "phases_s");
  if (!phases) return std::nullopt;
  Usage usage;
  read_fields(object, usage);
  return RunTimes::of(*phases, number_of(object, "cost_usd"), usage);
}

inline nlohmann::ordered_json to_array(const std::vector<CalibrationBin>& bins) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const CalibrationBin& bin : bins) array.push_back({bin.count, bin.confidence, bin.num_right});
  return array;
}

/// [["train", 1.25, 60.5], ...], to the millisecond.
inline nlohmann::ordered_json to_array(const std::vector<Span>& spans) {
  const auto shortened = [](double seconds) { return whole_or_number(std::round(seconds * 1000) / 1000); };
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Span& span : spans) array.push_back({name_of(span.phase), shortened(span.from_s), shortened(span.to_s)});
  return array;
}

}  // namespace lora_train::report
