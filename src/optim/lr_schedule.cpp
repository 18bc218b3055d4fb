#include "lora_train/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lora_train::optim {
namespace {

/// `step` counts from 0 here, like transformers' current_step.
double share_of_peak(const LrSchedule& schedule, double step) {
  const auto decay_steps = static_cast<double>(std::max<std::int64_t>(1, schedule.total_steps - schedule.warmup_steps));
  const double progress = (step - static_cast<double>(schedule.warmup_steps)) / decay_steps;
  const double cosine = std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  switch (schedule.kind) {
    case SchedulerKind::kLinear: return std::max(0.0, (static_cast<double>(schedule.total_steps) - step) / decay_steps);
    case SchedulerKind::kCosine: return cosine;
    case SchedulerKind::kCosineWithMinLr:
      return std::max(0.0, cosine * (1.0 - schedule.min_lr_ratio) + schedule.min_lr_ratio);
    case SchedulerKind::kConstant:
    case SchedulerKind::kConstantWithWarmup: break;
  }
  return 1.0;
}

}  // namespace

double LrSchedule::at_step(std::int64_t step) const {
  const std::int64_t current = step - 1;
  if (kind != SchedulerKind::kConstant && current < warmup_steps) {
    const auto warmup = static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
    return peak * (static_cast<double>(current) / warmup);
  }
  return peak * share_of_peak(*this, static_cast<double>(current));
}

LrSchedule make_lr_schedule(double learning_rate, const ScheduleSection& section, std::int64_t global_batch_size,
                            std::int64_t total_steps) {
  double peak = learning_rate;
  if (section.lr_scaling != LrScaling::kNone && section.lr_base_batch) {
    const double ratio = static_cast<double>(global_batch_size) / static_cast<double>(*section.lr_base_batch);
    peak *= section.lr_scaling == LrScaling::kSqrt ? std::sqrt(ratio) : ratio;
  }
  const std::int64_t warmup_steps = section.warmup_steps.value_or(
      static_cast<std::int64_t>(std::ceil(section.warmup_ratio * static_cast<double>(total_steps))));
  return {section.lr_scheduler_type, peak, warmup_steps, total_steps, section.min_lr_ratio};
}

}  // namespace lora_train::optim
