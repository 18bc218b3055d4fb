// The fields of a logged step: keys of metrics.jsonl, tags of TensorBoard, and charts of report.html, compare and
// curves.png. A new figure is one line.
#pragma once

#include <optional>
#include <vector>

#include "lora_train/base/record_fields.h"
#include "lora_train/report/metrics_writer.h"

namespace lora_train::report {

/// Where a figure is shown over steps. Those with the same title share a chart.
struct StepCurve {
  const char* title = nullptr;
  const char* unit = "";
  const char* format = "short";  ///< of a value, by page/format.js
  const char* name = "";         ///< of the curve in a shared chart
  bool is_peak = false;          ///< of several steps the largest counts, since a peak must not vanish; else the mean
  bool is_smoothed = false;
  bool from_zero = true;
  bool may_log = false;
  bool is_optional = true;  ///< no chart if no step has a value
  bool is_compared = true;  ///< false: only in the report of one run
};

template <typename Record, typename Value>
struct ChartedField : Field<Record, Value> {
  StepCurve curve;
};

template <typename Record, typename Value>
constexpr ChartedField<Record, Value> charted(const char* key, Value Record::*member, const StepCurve& curve,
                                              IfEmpty if_empty = IfEmpty::kKeep) {
  return {{key, member, if_empty}, curve};
}

struct StepChart {
  StepCurve shown;  ///< of its first curve
  struct Curve {
    const char *key, *name;
    std::optional<double> StepRecord::*value;
    bool is_peak;
  };
  std::vector<Curve> curves;
};

/// The charts of the list below.
const std::vector<StepChart>& step_charts();

}  // namespace lora_train::report

template <>
constexpr auto lora_train::record_fields<lora_train::report::StepRecord>() {
  using S = report::StepRecord;
  using report::charted;
  constexpr auto kOmit = IfEmpty::kOmit;
  return std::tuple{
      field("step", &S::step),
      field("epoch", &S::epoch),
      field("loss", &S::loss),
      field("supervised_tokens", &S::supervised_tokens),
      field("loss_mean", &S::loss_mean),
      charted("grad_norm", &S::grad_norm,
              {.title = "Gradient norm",
               .unit = "before clipping",
               .is_peak = true,
               .is_smoothed = true,
               .may_log = true,
               .is_optional = false}),
      charted("learning_rate", &S::learning_rate, {.title = "Learning rate", .is_optional = false}),
      field("tokens", &S::tokens),
      field("num_documents", &S::num_documents),
      charted("tokens_per_s", &S::tokens_per_s,
              {.title = "Throughput",
               .unit = "tokens per second",
               .format = "count",
               .is_smoothed = true,
               .is_optional = false}),
      field("step_ms", &S::step_ms),
      charted("data_wait_ms", &S::data_wait_ms,
              {.title = "Waiting for data", .unit = "ms per step", .is_smoothed = true, .is_compared = false}),
      charted("memory_gib", &S::memory_gib,
              {.title = "Memory", .unit = "GiB", .format = "gib", .name = "GPU", .is_peak = true}),
      field("time", &S::time),
      field("elapsed_s", &S::elapsed_s),
      field("eta_s", &S::eta_s),
      field("train_s", &S::train_s),
      field("cost_usd", &S::cost_usd),
      charted("cpu_percent", &S::cpu_percent,
              {.title = "CPU use", .unit = "% of one core", .format = "hundredths", .is_smoothed = true}),
      charted("host_memory_gib", &S::host_memory_gib,
              {.title = "Memory", .unit = "GiB", .format = "gib", .name = "host", .is_peak = true}),
      charted("gpu_utilization", &S::gpu_utilization,
              {.title = "GPU use", .unit = "% of the time", .format = "hundredths", .is_smoothed = true}, kOmit),
      charted("gpu_power_w", &S::gpu_power_w, {.title = "GPU power", .unit = "W", .is_smoothed = true}, kOmit),
      charted("gpu_temperature_c", &S::gpu_temperature_c,
              {.title = "GPU temperature", .unit = "\u00b0C", .is_peak = true, .from_zero = false}, kOmit),
      charted("gpu_clock_mhz", &S::gpu_clock_mhz,
              {.title = "GPU clock", .unit = "MHz", .format = "count", .from_zero = false}, kOmit),
      field("gpu_memory_used_gib", &S::gpu_memory_used_gib, kOmit),
      field("gpu_throttle", &S::gpu_throttle, kOmit),
      field("rank_compute_ms", &S::rank_compute_ms, kOmit),
      field("rank_data_wait_ms", &S::rank_data_wait_ms, kOmit),
      field("rank_memory_gib", &S::rank_memory_gib, kOmit),
      field("optim_zero_second_moments", &S::optim_zero_second_moments, kOmit)};
}
