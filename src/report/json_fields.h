// Writes and reads the fields of metrics.jsonl and summary.json.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

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

nlohmann::ordered_json to_object(const TrainRecord& record);
nlohmann::ordered_json to_object(const EvalRecord& record);
nlohmann::ordered_json to_object(const TaskRecord& record);

inline nlohmann::ordered_json to_object(const NamedSeconds& seconds) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : seconds) object[name] = value;
  return object;
}

/// Writes the keys with the sums of a run.
inline void put_times(nlohmann::ordered_json& object, const RunTimes& times) {
  object["phases_s"] = to_object(times.named());
  object["cost_usd"] = or_null(times.cost_usd);
  object["cpu_s"] = or_null(times.usage.cpu_s);
  object["energy_wh"] = or_null(times.usage.energy_wh);
  object["gpu_watched_s"] = times.usage.gpu_watched_s;
  object["gpu_busy_s"] = times.usage.gpu_busy_s;
}

/// Writes the keys with the GPU price of a run.
inline void put_price(nlohmann::ordered_json& object, const std::optional<Price>& price) {
  object["gpu_price_per_hour"] = price ? whole_or_number(price->of_gpu) : nlohmann::ordered_json(nullptr);
  object["price_source"] = or_null(price ? price->source : "");
}

/// Reads what put_times() wrote; empty for other objects.
inline std::optional<RunTimes> times_of(const nlohmann::ordered_json& object) {
  const auto phases = object.find("phases_s");
  if (phases == object.end() || !phases->is_object()) return std::nullopt;
  NamedSeconds seconds;
  for (const auto& [name, value] : phases->items()) {
    if (value.is_number()) seconds.emplace_back(name, value.get<double>());
  }
  const Usage usage{number_of(object, "cpu_s"), number_of(object, "energy_wh"),
                    number_of(object, "gpu_watched_s").value_or(0), number_of(object, "gpu_busy_s").value_or(0)};
  return RunTimes::of(seconds, number_of(object, "cost_usd"), usage);
}

/// The "bins" of an "eval" line; empty unless all are [count, sum of confidence, number right].
std::vector<ReliabilityBin> bins_of(const nlohmann::ordered_json& line);

/// [["train", 1.25, 60.5], ...], to the millisecond.
inline nlohmann::ordered_json to_array(const std::vector<Span>& spans) {
  const auto shortened = [](double seconds) { return whole_or_number(std::round(seconds * 1000) / 1000); };
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Span& span : spans) array.push_back({name_of(span.phase), shortened(span.from_s), shortened(span.to_s)});
  return array;
}

}  // namespace lora_train::report
