// Learning-rate schedules under their Hugging Face names (transformers get_scheduler). Each depends only on the step,
// so a resumed run needs no state.
#pragma once

#include <cstdint>

#include "lora_train/config/keys/profile.h"

namespace lora_train::optim {

/// The learning rate over the steps of a run.
struct LrSchedule {
  SchedulerKind kind = SchedulerKind::kConstant;
  double peak = 0;
  std::int64_t warmup_steps = 0, total_steps = 0;
  double min_lr_ratio = 0;  ///< cosine_with_min_lr: the floor, as a fraction of the peak

  /// The learning rate of optimizer step `step` (counted from 1): transformers' lambda at step - 1. `constant` ignores
  /// the warm-up, as transformers does.
  double at_step(std::int64_t step) const;
};

/// The schedule of a run of total_steps steps with global_batch_size rows each: applies lr_scaling, and turns
/// warmup_ratio into steps.
LrSchedule make_lr_schedule(double learning_rate, const ScheduleSection& section, std::int64_t global_batch_size,
                            std::int64_t total_steps);

}  // namespace lora_train::optim
