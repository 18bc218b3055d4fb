#include "lora_train/optim/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "lora_train/base/error.h"

namespace lora_train::optim {
namespace {

// Share of the peak rate; `step` counts from 0 here, as transformers' current_step.
using Lambda = double (*)(const LrScheduleOptions& options, double step);

double decay_progress(const LrScheduleOptions& options, double step) {
  const auto decay_steps = std::max<std::int64_t>(1, options.total_steps - options.warmup_steps);
  return (step - static_cast<double>(options.warmup_steps)) / static_cast<double>(decay_steps);
}

double linear(const LrScheduleOptions& options, double step) {
  const auto decay_steps = std::max<std::int64_t>(1, options.total_steps - options.warmup_steps);
  return std::max(0.0, (static_cast<double>(options.total_steps) - step) / static_cast<double>(decay_steps));
}

double cosine(const LrScheduleOptions& options, double step) {
  return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * decay_progress(options, step))));
}

double cosine_with_min_lr(const LrScheduleOptions& options, double step) {
  return std::max(0.0, cosine(options, step) * (1.0 - options.min_lr_ratio) + options.min_lr_ratio);
}

double constant(const LrScheduleOptions&, double) { return 1.0; }

struct Schedule {
  std::string_view name;
  Lambda after_warmup;
  bool has_warmup;
};

constexpr std::array<Schedule, 5> kSchedules = {{{"linear", linear, true},
                                                 {"cosine", cosine, true},
                                                 {"constant", constant, false},
                                                 {"constant_with_warmup", constant, true},
                                                 {"cosine_with_min_lr", cosine_with_min_lr, true}}};

const Schedule& find_schedule(const std::string& name) {
  std::string known;
  for (const auto& schedule : kSchedules) {
    if (schedule.name == name) {
      return schedule;
    }
    known += (known.empty() ? "" : ", ") + std::string(schedule.name);
  }
  throw ConfigError("lr_scheduler_type", "\"" + name + "\" is no known schedule. Choose one of: " + known + ".");
}

}  // namespace

double lr_at_step(const LrScheduleOptions& options, std::int64_t step) {
  const auto& schedule = find_schedule(options.type);
  const std::int64_t current = step - 1;
  if (schedule.has_warmup && current < options.warmup_steps) {
    const auto warmup = static_cast<double>(std::max<std::int64_t>(1, options.warmup_steps));
    return options.learning_rate * (static_cast<double>(current) / warmup);
  }
  return options.learning_rate * schedule.after_warmup(options, static_cast<double>(current));
}

}  // namespace lora_train::optim
