// lora-train plan: memory, time and cost of a run on GPUs that are not here. What it prints: a table of GPUs, settings that people
// compare, and a verdict.
#pragma once

#include <optional>
#include <string>

#include "lora_train/bench/forecast/forecast.h"

namespace lora_train::cli {

struct PlanLimits {
  std::optional<double> deadline_s = {}, budget_usd = {};
};

/// The cheapest row that fits and meets the deadline; or, with a budget alone, the fastest within it. If none does, the nearest:
/// the fastest, or the cheapest.
struct PlanVerdict {
  const bench::Forecast* row = nullptr;  ///< null: the run fits nowhere
  bool is_met = false;
  std::string text = {};  ///< a sentence
};
PlanVerdict judge(const bench::ForecastResult& result, const PlanLimits& limits);

/// disk_gb_s: at which checkpoints are written.
std::string plan_table(const bench::ForecastResult& result, const PlanLimits& limits, double disk_gb_s);

/// One object a line: every row, then the verdict if there are limits.
std::string plan_json(const bench::ForecastResult& result, const PlanLimits& limits);

}  // namespace lora_train::cli
