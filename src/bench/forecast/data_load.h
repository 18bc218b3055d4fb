// The model and the data of a forecast: how many steps a run has, and what is in them.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "lora_train/bench/forecast/forecast.h"
#include "lora_train/data/prepare.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/run_spec.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::bench {

/// How many there are, what a step has on average over all ranks, and the rank that has most of it.
struct Steps {
  std::int64_t count = 0;
  double of_epoch = 0, tokens = 0, most_rows = 0, most_tokens = 0;
};

/// The data of a run, read or stated.
class DataLoad {
 public:
  DataLoad(const ForecastRequest& request, const plan::ModelFiles& files);

  const DataFacts& facts() const { return facts_; }

  /// plan::RunFacts::rows_of_rank.
  std::int64_t rows_of_rank(const Profile& profile, std::int64_t num_ranks) const;

  Steps steps_of(const Profile& profile, const data::BatchSizes& sizes, std::int64_t num_ranks) const;

  /// Of the first thousand steps of one rank, and of full evaluation batches.
  plan::TouchedTokens largest_micro_batch(const Profile& profile, const plan::RunSpec& spec) const;

 private:
  /// The GPUs share it: micro-batches, in which they differ, change none of its figures.
  const data::RunPlan& plan_of(const Profile& profile, const data::BatchSizes& sizes, std::int64_t num_ranks) const;
  void state(const ForecastRequest& request);
  void read(const Profile& profile, const plan::ModelFiles& files);
  /// Of documents of stated lengths.
  double rows_of(const Profile& profile, double documents) const;

  data::PreparedData prepared_;
  mutable std::map<std::tuple<bool, std::int64_t, std::int64_t>, data::RunPlan> plans_;  ///< each keeps an epoch
  DataFacts facts_;
};

/// Headers of weights are read where there are any. Throws FormatError for a quantised folder without weights: only they say which
/// linears are.
plan::ModelFiles open_model_files(const Profile& profile);

}  // namespace lora_train::bench
