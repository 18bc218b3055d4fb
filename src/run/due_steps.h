// When a run evaluates and saves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "lora_train/config/profile.h"
#include "lora_train/data/plan/run_plan.h"

namespace lora_train::run {

/// The steps at which a cadence (eval_steps, save_steps) is due.
class DueSteps {
 public:
  DueSteps(const Cadence& cadence, const data::RunPlan& plan) : plan_(plan) {
    const std::int64_t total = plan.total_steps();
    if (cadence.kind == Cadence::Kind::kSteps) every_ = static_cast<std::int64_t>(cadence.value);
    if (cadence.kind == Cadence::Kind::kFraction) {
      every_ =
          std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(cadence.value * static_cast<double>(total))));
    }
    each_epoch_ = cadence.kind == Cadence::Kind::kEpoch;
  }
  /// The next one after `step`; nothing if it is each epoch, or none comes before the end.
  std::optional<std::int64_t> next_after(std::int64_t step) const {
    if (every_ <= 0 || (step / every_ + 1) * every_ > plan_.total_steps()) return std::nullopt;
    return (step / every_ + 1) * every_;
  }
  bool is_due(std::int64_t step) const {
    return (every_ > 0 && step % every_ == 0) || (each_epoch_ && step > 0 && plan_.ends_epoch(step));
  }

 private:
  const data::RunPlan& plan_;
  std::int64_t every_ = 0;
  bool each_epoch_ = false;
};

}  // namespace lora_train::run
