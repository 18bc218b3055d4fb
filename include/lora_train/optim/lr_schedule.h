// Learning-rate schedules under the names of Hugging Face (transformers get_scheduler); closed forms of the step, so a
// resumed run needs no state.
#pragma once

#include <cstdint>
#include <string>

namespace lora_train::optim {

struct LrScheduleOptions {
  std::string type = "cosine";  ///< linear | cosine | constant | constant_with_warmup | cosine_with_min_lr
  double learning_rate = 0;     ///< peak
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  double min_lr_ratio = 0;  ///< cosine_with_min_lr: the floor as a share of the peak
};

/// Rate used in optimizer step `step` (counts from 1): transformers' lambda at step - 1. `constant` ignores the warm-up,
/// as transformers does.
/// Throws ConfigError naming the known types for an unknown one.
double lr_at_step(const LrScheduleOptions& options, std::int64_t step);

}  // namespace lora_train::optim
