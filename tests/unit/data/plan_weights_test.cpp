#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

std::vector<Documents> rows_of(const DocumentStore& store, const PlanOptions& options, int epoch) {
  const Rows rows = plan_rows(store, options, epoch);
  std::vector<Documents> lists;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    lists.emplace_back(rows[r].begin(), rows[r].end());
  }
  return lists;
}

std::vector<int> times_seen(const DocumentStore& store, const PlanOptions& options, int epoch) {
  std::vector<int> times(store.size());
  for (const auto& row : rows_of(store, options, epoch)) {
    for (const auto document : row) {
      ++times[document];
    }
  }
  return times;
}

TEST(PlanWeights, OfOneChangeNothing) {
  const DocumentStore store = store_of(random_lengths(200, 15, 50, 21));
  for (const bool packing : {true, false}) {
    for (const bool shuffle : {true, false}) {
      PlanOptions plain = options_with(8, 2), weighted = plain;
      plain.packing = weighted.packing = packing;
      plain.shuffle = weighted.shuffle = shuffle;
      weighted.ranges = {{0, 20, 1.0}, {20, 20, 1.0}, {20, 200, 1.0}};
      for (const int epoch : {0, 1, 5}) {
        EXPECT_EQ(rows_of(store, weighted, epoch), rows_of(store, plain, epoch));
      }
    }
  }
}

TEST(PlanWeights, UseDocumentsOfARangeEquallyOftenAtEveryTime) {
  const DocumentStore store = store_of(random_lengths(140, 15, 50, 22));
  PlanOptions options = options_with(8, 2);
  options.ranges = {{0, 30, 1.0}, {30, 130, 0.29}, {130, 140, 2.5}};  // 0.29 * 100 is 28.999999999999996
  for (const bool shuffle : {true, false}) {
    options.shuffle = shuffle;
    std::vector<int> seen(140);
    for (int epoch = 0; epoch < 25; ++epoch) {
      const auto times = times_seen(store, options, epoch);
      std::transform(seen.begin(), seen.end(), times.begin(), seen.begin(), std::plus<>());
      for (const WeightedRange& range : options.ranges) {
        const auto begin = seen.begin() + static_cast<std::ptrdiff_t>(range.begin);
        const auto end = seen.begin() + static_cast<std::ptrdiff_t>(range.end);
        EXPECT_LE(*std::max_element(begin, end) - *std::min_element(begin, end), 1);
        const double expected = range.weight * static_cast<double>(range.end - range.begin) * (epoch + 1);
        EXPECT_EQ(std::accumulate(begin, end, 0), static_cast<int>(expected + 1e-6)) << range.weight;
      }
    }
  }
}

TEST(PlanWeights, ChooseOtherDocumentsInEachPass) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(40, 5));
  PlanOptions options = options_with(8, 2);
  options.ranges = {{0, 20, 0.5}, {20, 40, 0.5}};
  std::vector<std::vector<int>> epochs;
  for (int epoch = 0; epoch < 4; ++epoch) {
    epochs.push_back(times_seen(store, options, epoch));
    EXPECT_EQ(epochs.back(), times_seen(store, options, epoch));
  }
  EXPECT_NE(epochs[0], epochs[2]);  // first halves of two passes
  const auto first = epochs[0].begin();
  EXPECT_NE(std::vector<int>(first, first + 20), std::vector<int>(first + 20, first + 40));
  options.seed = 8;
  EXPECT_NE(times_seen(store, options, 0), epochs[0]);
}

TEST(PlanWeights, KeepTheOrderOfTheFilesWithoutShuffle) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(6, 5));
  PlanOptions options = options_with(8, 2);
  options.packing = options.shuffle = false;
  options.ranges = {{0, 4, 0.5}, {4, 6, 1.5}};
  using Lists = std::vector<Documents>;
  EXPECT_EQ(rows_of(store, options, 0), (Lists{{0}, {1}, {4}, {4}, {5}}));
  EXPECT_EQ(rows_of(store, options, 1), (Lists{{2}, {3}, {4}, {5}, {5}}));
  EXPECT_EQ(rows_of(store, options, 2), (Lists{{0}, {1}, {4}, {4}, {5}}));
  options.num_epochs = 2;
  EXPECT_EQ(documents_of(RunPlan(store, options).step(2)), (Documents{2, 3, 4, 5, 5}));
}

TEST(PlanWeights, CountStepsOfEveryEpoch) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(7, 5));
  for (const bool packing : {true, false}) {
    PlanOptions options = options_with(2, 2, 4);
    options.packing = packing;
    options.max_seq_len = 9;         // a row holds one document either way
    options.ranges = {{0, 7, 0.5}};  // 3, 4, 3, 4 documents
    const RunPlan plan(store, options);
    EXPECT_EQ(steps_per_epoch(plan), (std::vector<std::int64_t>{2, 2, 2, 2}));
    EXPECT_EQ(plan.rows_per_epoch(), 3);
    EXPECT_DOUBLE_EQ(plan.documents_per_step(), 1.5);
    EXPECT_DOUBLE_EQ(plan.tokens_per_step(), 7.5);
    EXPECT_DOUBLE_EQ(plan.packing_efficiency(), 15.0 / 27.0);
    EXPECT_EQ(plan.step(2).num_rows, 1);
    EXPECT_EQ(plan.step(4).num_rows, 2);
  }
}

TEST(PlanWeights, AnEpochWithoutADocumentHasNoStep) {
  const DocumentStore store = store_of({5, 5, 5, 5});
  PlanOptions options = options_with(1, 1, 3);
  options.ranges = {{0, 2, 0.3}, {2, 4, 0.3}};  // 0.6 documents an epoch each: none, one, none; 1.2 together
  options.packing = false;
  const RunPlan plan(store, options);
  EXPECT_EQ(steps_per_epoch(plan), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(plan.steps_of_first_epoch(), 0);
  EXPECT_EQ(plan.step(1).epoch, 1);
  EXPECT_EQ(plan.step(2).epoch, 1);
  EXPECT_DOUBLE_EQ(plan.step(2).epoch_after, 2.0);
  EXPECT_EQ(plan.rows_per_epoch(), 2);
  options.num_epochs = 1;
  EXPECT_THROW(RunPlan(store, options), DataError);
}

TEST(PlanWeights, RefusesWhatIsNoWeight) {
  const DocumentStore store = store_of({5, 5});
  PlanOptions options = options_with(1, 1);
  for (const double weight : {0.0, -1.0, HUGE_VAL, 1e-3, 1e10}) {
    options.ranges = {{0, 2, weight}};
    EXPECT_THROW(RunPlan(store, options), ConfigError) << weight;
  }
  for (const std::vector<WeightedRange>& ranges : {std::vector<WeightedRange>{{0, 1, 1.0}}, {{1, 2, 1.0}}}) {
    options.ranges = ranges;
    EXPECT_THROW(RunPlan(store, options), ShapeError);
  }
}

}  // namespace
}  // namespace lora_train::data
