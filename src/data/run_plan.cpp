#include "lora_train/data/run_plan.h"

#include <algorithm>

#include "lora_train/base/ceil_div.h"

namespace lora_train::data {

BatchSizes resolve_batch_sizes(const ScheduleSection& section, std::int64_t max_seq_len, std::int64_t auto_tokens,
                               std::int64_t num_ranks, std::int64_t rows_of_rank) {
  const std::int64_t fitting = std::max<std::int64_t>(1, auto_tokens / max_seq_len);
  BatchSizes sizes;
  sizes.micro = section.micro_batch_size.value_or(fitting);
  sizes.global = section.gradient_accumulation_steps ? sizes.micro * *section.gradient_accumulation_steps * num_ranks
                                                     : section.global_batch_size.value_or(1);
  if (section.batch_unit == BatchUnit::kDocuments && rows_of_rank > 0) {
    sizes.micro = std::min(sizes.micro, rows_of_rank);
    return sizes;
  }
  if (section.gradient_accumulation_steps) return sizes;
  rows_of_rank = ceil_div(sizes.global, num_ranks);
  sizes.micro = std::min(sizes.micro, rows_of_rank);
  while (!section.micro_batch_size && rows_of_rank % sizes.micro != 0) {
    --sizes.micro;
  }
  return sizes;
}

std::int64_t count_rows_of_rank(const Profile& profile, const PreparedData& prepared, std::int64_t num_ranks) {
  if (!profile.packs_documents()) return 0;
  const BatchSizes sizes =
      resolve_batch_sizes(profile.schedule, prepared.max_seq_len, kAutoMicroBatchTokens, num_ranks);
  return plan_run(profile, prepared, sizes, {0, num_ranks}).most_rows_of_rank();
}

RunPlan plan_run(const Profile& profile, const PreparedData& prepared, const BatchSizes& sizes, RankOf of) {
  PlanOptions options;
  options.max_seq_len = prepared.max_seq_len;
  options.packing = profile.data.packing;
  options.shuffle = profile.data.shuffle;
  options.seed = static_cast<std::uint64_t>(profile.run.seed);
  options.global_batch_size = sizes.global;
  options.batch_unit = profile.schedule.batch_unit;
  options.micro_batch_size = sizes.micro;
  options.rank = of.rank;
  options.world_size = of.world_size;
  options.num_epochs = profile.schedule.num_epochs;
  options.max_steps = profile.schedule.max_steps;
  const auto is_plain = [](const WeightedRange& range) { return range.weight == 1; };
  if (!std::all_of(prepared.train_ranges.begin(), prepared.train_ranges.end(), is_plain)) {
    options.ranges = prepared.train_ranges;
  }
  return {prepared.train, options};
}

}  // namespace lora_train::data
