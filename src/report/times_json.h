// RunTimes and spans as metrics.jsonl and summary.json have them.
#pragma once

#include <cmath>

#include "json_number.h"
#include "json_value.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

inline nlohmann::ordered_json to_object(const NamedSeconds& seconds) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : seconds) object[name] = value;
  return object;
}

/// The keys of a line that has the sums of a run.
inline void put_times(nlohmann::ordered_json& object, const RunTimes& times) {
  object["phases_s"] = to_object(times.named());
  object["cost_usd"] = or_null(times.cost_usd);
  object["cpu_s"] = or_null(times.usage.cpu_s);
  object["energy_wh"] = or_null(times.usage.energy_wh);
  object["gpu_watched_s"] = times.usage.gpu_watched_s;
  object["gpu_busy_s"] = times.usage.gpu_busy_s;
}

/// The keys that say what the GPUs of a run cost.
inline void put_price(nlohmann::ordered_json& object, const std::optional<Price>& price) {
  object["gpu_price_per_hour"] = price ? whole_or_number(price->of_gpu) : nlohmann::ordered_json(nullptr);
  object["price_source"] = or_null(price ? price->source : "");
}

/// What put_times() wrote; nothing for other objects.
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

/// [["train", 1.25, 60.5], ...], to the millisecond.
inline nlohmann::ordered_json to_array(const std::vector<Span>& spans) {
  const auto shortened = [](double seconds) { return whole_or_number(std::round(seconds * 1000) / 1000); };
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Span& span : spans) array.push_back({name_of(span.phase), shortened(span.from_s), shortened(span.to_s)});
  return array;
}

}  // namespace lora_train::report
