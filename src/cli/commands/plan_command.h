// lora-train plan: memory, time and cost of a run on each type of GPU. Prints a table of GPUs, commonly compared
// settings, and a verdict.
#pragma once

#include <optional>
#include <string>

#include "lora_train/bench/forecast/forecast.h"

namespace lora_train::cli {

struct PlanLimits {
  std::optional<double> deadline_s = {}, budget_usd = {};
};

/// The cheapest row that fits and meets the deadline; with only a budget, the fastest within it. If none does, the
/// nearest: the fastest, or the cheapest.
struct PlanVerdict {
  const bench::Forecast* row = nullptr;  ///< null: the run fits on no GPU
  bool is_met = false;
  std::string text = {};  ///< a sentence
};
PlanVerdict judge(const bench::ForecastResult& result, const PlanLimits& limits);

/// disk_gb_s: speed of writing checkpoints.
std::string plan_table(const bench::ForecastResult& result, const PlanLimits& limits, double disk_gb_s);

/// JSON objects, one per line: every row, then the verdict if there are limits.
std::string plan_json(const bench::ForecastResult& result, const PlanLimits& limits);

}  // namespace lora_train::cli
