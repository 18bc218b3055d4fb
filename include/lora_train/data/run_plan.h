// The plan of a run from a profile and prepared data, for training and for `tokenize --step`.
#pragma once

#include <cstdint>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/plan/plan.h"
#include "lora_train/data/prepare.h"

namespace lora_train::data {

/// Rows per micro-batch of a rank, and rows or documents (batch_unit) per step over all ranks.
struct BatchSizes {
  std::int64_t micro = 1, global = 1;
};

/// micro_batch_size: auto is the largest divisor of a rank's rows of a step (rounded up) that keeps a micro-batch within this many
/// tokens. gradient_accumulation_steps counts the micro-batches of each rank.
///
/// With batch_unit: documents, `rows_of_rank` is the most rows that a rank has in a step (0: not known, as many as documents). A
/// micro-batch has no more, and auto need not divide them, since they differ from step to step.
constexpr std::int64_t kAutoMicroBatchTokens = 4096;
BatchSizes resolve_batch_sizes(const ScheduleSection& section, std::int64_t max_seq_len,
                               std::int64_t auto_tokens = kAutoMicroBatchTokens, std::int64_t num_ranks = 1,
                               std::int64_t rows_of_rank = 0);

/// For resolve_batch_sizes(): the most rows that a rank has in a step of the first epoch with batch_unit: documents; else 0.
std::int64_t count_rows_of_rank(const Profile& profile, const PreparedData& prepared, std::int64_t num_ranks = 1);

/// Whose micro-batches a plan has.
struct RankOf {
  std::int64_t rank = 0, world_size = 1;
};

/// The plan of a run, including the weights of the datasets. `prepared` comes from the same profile and must outlive the plan.
RunPlan plan_run(const Profile& profile, const PreparedData& prepared, const BatchSizes& sizes, RankOf of = {});

}  // namespace lora_train::data
