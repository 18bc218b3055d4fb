#include "lora_train/data/run_plan.h"

#include <algorithm>

#include "lora_train/base/ceil_div.h"

namespace lora_train::data {

BatchSizes resolve_batch_sizes(const ScheduleSection& section, std::int64_t max_seq_len, std::int64_t auto_tokens,
                               std::int64_t num_ranks) {
  const std::int64_t fitting = std::max<std::int64_t>(1, auto_tokens / max_seq_len);
  BatchSizes sizes;
  if (section.gradient_accumulation_steps) {
    sizes.micro = section.micro_batch_size.value_or(fitting);
    sizes.global = sizes.micro * *section.gradient_accumulation_steps * num_ranks;
    return sizes;
  }
  sizes.global = section.global_batch_size.value_or(1);
  const std::int64_t rows_of_rank = ceil_div(sizes.global, num_ranks);
  if (section.micro_batch_size) {
    sizes.micro = std::min(*section.micro_batch_size, rows_of_rank);
    return sizes;
  }
  sizes.micro = std::min(fitting, rows_of_rank);
  while (rows_of_rank % sizes.micro != 0) {
    --sizes.micro;
  }
  return sizes;
}

RunPlan plan_run(const Profile& profile, const PreparedData& prepared, const BatchSizes& sizes, RankOf of) {
  PlanOptions options;
  options.max_seq_len = prepared.max_seq_len;
  options.packing = profile.data.packing;
  options.shuffle = profile.data.shuffle;
  options.seed = static_cast<std::uint64_t>(profile.run.seed);
  options.global_batch_size = sizes.global;
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
