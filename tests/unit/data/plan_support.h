// Small stores and what the tests of plans ask of steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/epoch_rows.h"
#include "lora_train/data/plan/plan.h"
#include "store_builder.h"

namespace lora_train::data {

using Documents = std::vector<std::uint32_t>;

/// Lengths as real chats have them: many short, few long, at most `longest`.
inline std::vector<std::uint32_t> random_lengths(std::size_t count, double median, std::uint32_t longest,
                                                 std::uint32_t seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> length(std::log(median), 0.9);
  std::vector<std::uint32_t> lengths(count);
  for (auto& tokens : lengths) tokens = std::clamp(static_cast<std::uint32_t>(length(random)), 1U, longest);
  return lengths;
}

/// Document i has lengths[i] tokens, all with id i and trained.
inline DocumentStore store_of(const std::vector<std::uint32_t>& lengths) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::vector<std::int32_t> ids(lengths[i], static_cast<std::int32_t>(i));
    builder.append(ids, ids, file, i + 1);
  }
  return builder.build();
}

inline Documents documents_of(const StepPlan& step) {
  Documents out;
  for (const auto& micro_batch : step.micro_batches)
    out.insert(out.end(), micro_batch.documents.begin(), micro_batch.documents.end());
  return out;
}

inline std::vector<Documents> as_lists(const Rows& rows) {
  std::vector<Documents> lists;
  for (std::size_t r = 0; r < rows.size(); ++r) lists.emplace_back(rows[r].begin(), rows[r].end());
  return lists;
}

template <class Values>
Values sorted(Values values) {
  std::sort(values.begin(), values.end());
  return values;
}

/// The documents 0, 1, ...
inline Documents in_order(std::size_t count) {
  Documents order(count);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

/// Of each epoch that the run enters.
inline std::vector<std::int64_t> steps_per_epoch(const RunPlan& plan) {
  std::vector<std::int64_t> steps;
  for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
    steps.resize(static_cast<std::size_t>(plan.step(k).epoch) + 1);
    ++steps.back();
  }
  return steps;
}

/// In rows of 50 tokens, packed and shuffled.
inline PlanOptions options_with(std::int64_t global, std::int64_t micro, double epochs = 1) {
  PlanOptions options;
  options.max_seq_len = 50;
  options.seed = 7;
  options.global_batch_size = global;
  options.micro_batch_size = micro;
  options.num_epochs = epochs;
  return options;
}

inline PlanOptions unpacked(PlanOptions options) {
  options.packing = false;
  return options;
}

inline PlanOptions unshuffled(PlanOptions options) {
  options.shuffle = false;
  return options;
}

inline std::vector<StepPlan> step_of_all_ranks(const DocumentStore& store, PlanOptions options, std::int64_t k) {
  std::vector<StepPlan> ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(RunPlan(store, options).step(k));
  }
  return ranks;
}

}  // namespace lora_train::data
