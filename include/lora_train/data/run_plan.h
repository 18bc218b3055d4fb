// The plan of a run from a profile and prepared data, for training and for `tokenize --step`.
#pragma once

#include <cstdint>

#include "lora_train/config/profile.h"
#include "lora_train/data/plan.h"
#include "lora_train/data/prepare.h"

namespace lora_train::data {

/// Rows per micro-batch and per step.
struct BatchSizes {
  std::int64_t micro = 1, global = 1;
};

/// micro_batch_size: auto is the largest divisor of the step's rows that keeps a micro-batch within this many tokens.
constexpr std::int64_t kAutoMicroBatchTokens = 4096;
BatchSizes resolve_batch_sizes(const ScheduleSection& section, std::int64_t max_seq_len,
                               std::int64_t auto_tokens = kAutoMicroBatchTokens);

/// The plan of a run, including the weights of the datasets. `prepared` comes from the same profile and must outlive the plan.
RunPlan plan_run(const Profile& profile, const PreparedData& prepared, const BatchSizes& sizes);

}  // namespace lora_train::data
