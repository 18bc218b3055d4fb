#include "lora_train/data/plan/plan.h"

#include <gtest/gtest.h>

#include <set>

#include "lora_train/base/error.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

// Documents of 1 to `longest` tokens, of varied length.
DocumentStore documents(std::size_t count, std::size_t longest) {
  std::vector<std::uint32_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) {
    lengths[i] = static_cast<std::uint32_t>(1 + (i * 7919 + 3) % longest);
  }
  return store_of(lengths);
}

TEST(EpochOrder, IsAPermutationThatDependsOnSeedAndEpoch) {
  const auto order = epoch_order(100, 1, 0, true);
  EXPECT_EQ(std::set<std::uint32_t>(order.begin(), order.end()).size(), 100U);
  EXPECT_EQ(order, epoch_order(100, 1, 0, true));
  EXPECT_NE(order, epoch_order(100, 1, 1, true));
  EXPECT_NE(order, epoch_order(100, 2, 0, true));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  const auto unshuffled = epoch_order(100, 1, 0, false);
  EXPECT_TRUE(std::is_sorted(unshuffled.begin(), unshuffled.end()));
}

// The order is a promise: a run resumed by a later version must see the same rows.
TEST(EpochOrder, StaysWhatItIs) {
  EXPECT_EQ(epoch_order(8, 42, 0, true), (Documents{7, 4, 2, 5, 3, 0, 6, 1}));
  EXPECT_EQ(epoch_order(8, 42, 1, true), (Documents{2, 5, 0, 4, 3, 6, 7, 1}));
}

TEST(EpochOrder, PutsEveryDocumentEverywhereAboutEquallyOften) {
  std::vector<int> first_is(5);
  for (int epoch = 0; epoch < 5000; ++epoch) {
    ++first_is[epoch_order(5, 3, epoch, true)[0]];
  }
  for (const int count : first_is) {
    EXPECT_NEAR(count, 1000, 120);  // four standard deviations
  }
}

TEST(RunPlan, StepsHoldTheSameDocumentsForEveryMicroBatchSize) {
  const DocumentStore store = documents(157, 40);
  const RunPlan reference(store, options_with(8, 8, 2));
  ASSERT_GT(reference.total_steps(), 8);
  for (const std::int64_t micro : {1, 2, 3, 5, 100}) {
    const RunPlan plan(store, options_with(8, micro, 2));
    ASSERT_EQ(plan.total_steps(), reference.total_steps());
    for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
      EXPECT_EQ(documents_of(plan.step(k)), documents_of(reference.step(k)));
      EXPECT_EQ(plan.step(k).num_supervised, reference.step(k).num_supervised);
    }
  }
}

TEST(RunPlan, EveryDocumentCountsOnceAnEpoch) {
  const DocumentStore store = documents(100, 40);
  const RunPlan plan(store, options_with(4, 2, 3));
  ASSERT_EQ(steps_per_epoch(plan).size(), 3U);
  std::int64_t k = 0, tokens = 0;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    Documents seen;
    for (std::int64_t i = 0; i < steps_per_epoch(plan)[epoch]; ++i) {
      const StepPlan step = plan.step(++k);
      EXPECT_EQ(step.step, k);
      EXPECT_EQ(step.epoch, static_cast<int>(epoch));
      EXPECT_LE(step.num_rows, 4);
      tokens += step.num_tokens;
      const auto in_step = documents_of(step);
      EXPECT_EQ(step.num_documents, static_cast<std::int64_t>(in_step.size()));
      seen.insert(seen.end(), in_step.begin(), in_step.end());
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, epoch_order(100, 0, 0, false));
    EXPECT_DOUBLE_EQ(plan.step(k).epoch_after, static_cast<double>(epoch + 1));
  }
  EXPECT_EQ(k, plan.total_steps());
  EXPECT_EQ(tokens, 3 * store.total_tokens());
}

TEST(RunPlan, TrainsTheLastSmallerBatch) {
  const DocumentStore store = documents(10, 5);
  PlanOptions options = options_with(4, 4, 2);
  options.packing = false;
  const RunPlan plan(store, options);
  EXPECT_EQ(steps_per_epoch(plan), (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(plan.step(3).num_rows, 2);
  EXPECT_EQ(plan.step(4).num_rows, 4);
  EXPECT_EQ(plan.step(3).epoch, 0);
  EXPECT_EQ(plan.step(4).epoch, 1);
  EXPECT_DOUBLE_EQ(plan.step(1).epoch_after, 0.4);
}

TEST(RunPlan, DealsRowsInOrderAndNumbersDocumentsInTheStep) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(6, 25));
  PlanOptions options = options_with(3, 2);
  options.shuffle = false;
  const StepPlan step = RunPlan(store, options).step(1);
  ASSERT_EQ(step.micro_batches.size(), 2U);
  EXPECT_EQ(step.micro_batches[0].documents, (Documents{0, 1, 2, 3}));
  EXPECT_EQ(step.micro_batches[0].document_in_step, (Documents{0, 1, 2, 3}));
  EXPECT_EQ(step.micro_batches[1].documents, (Documents{4, 5}));
  EXPECT_EQ(step.micro_batches[1].document_in_step, (Documents{4, 5}));
  EXPECT_EQ(step.num_tokens, 150);
  EXPECT_EQ(step.num_supervised, 144);
}

TEST(RunPlan, SmallerOfEpochsAndStepsEndsTheRun) {
  const DocumentStore store = documents(10, 5);
  PlanOptions options = options_with(4, 4, 2);
  options.packing = false;
  options.max_steps = 5;
  EXPECT_EQ(steps_per_epoch(RunPlan(store, options)), (std::vector<std::int64_t>{3, 2}));
  options.max_steps = 100;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 6);
  options.num_epochs = std::nullopt;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 100);
  options.max_steps = std::nullopt;
  EXPECT_THROW(RunPlan(store, options), ShapeError);
  options.num_epochs = 1.5;  // half of three steps, rounded up
  EXPECT_EQ(steps_per_epoch(RunPlan(store, options)), (std::vector<std::int64_t>{3, 2}));
  options.num_epochs = 0.1;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 1);
}

TEST(RunPlan, EveryLastStepOfAnEpochEndsIt) {
  const DocumentStore store = documents(60, 40);
  for (const bool packing : {false, true}) {
    PlanOptions options = options_with(4, 2, 2.5);
    options.packing = packing;
    const RunPlan plan(store, options);
    EXPECT_EQ(plan.steps_of_first_epoch(), steps_per_epoch(plan)[0]);
    for (std::int64_t k = 1; k < plan.total_steps(); ++k) {
      EXPECT_EQ(plan.ends_epoch(k), plan.step(k).epoch != plan.step(k + 1).epoch) << k;
    }
    EXPECT_TRUE(plan.ends_epoch(plan.total_steps()));
  }
}

TEST(RunPlan, CountsEpochsAsTheyAreReachedWithTheStepsOfACountedRun) {
  const DocumentStore store = documents(60, 40);
  const RunPlan counted(store, options_with(4, 2, 5));
  PlanOptions options = options_with(4, 2);
  options.num_epochs = std::nullopt;
  options.max_steps = 1'000'000'000'000;
  const RunPlan endless(store, options);
  EXPECT_EQ(endless.total_steps(), 1'000'000'000'000);
  for (std::int64_t k = counted.total_steps() - 1; k >= 1; --k) {
    EXPECT_EQ(documents_of(endless.step(k)), documents_of(counted.step(k))) << k;
    EXPECT_EQ(endless.ends_epoch(k), counted.ends_epoch(k)) << k;
  }
}

TEST(RunPlan, CountsEqualEpochsWithoutALoop) {
  const DocumentStore store = documents(10, 5);
  PlanOptions options = options_with(4, 4, 1e12 + 0.5);  // three steps an epoch
  options.packing = false;
  const RunPlan plan(store, options);
  EXPECT_EQ(plan.total_steps(), 3'000'000'000'002);
  EXPECT_EQ(plan.step(3'000'000'001).epoch, 1'000'000'000);
  EXPECT_THROW(plan.step(plan.total_steps()), ConfigError);
  options.max_steps = 1'000'000'000;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 1'000'000'000);
}

TEST(RunPlan, StepIsTheSameInWhateverOrderItIsAskedFor) {
  const DocumentStore store = documents(60, 40);
  const RunPlan plan(store, options_with(4, 2, 3)), again(store, options_with(4, 2, 3));
  for (std::int64_t k = plan.total_steps(); k >= 1; --k) {
    const auto backwards = documents_of(again.step(k));
    EXPECT_EQ(backwards, documents_of(plan.step(k)));
    EXPECT_FALSE(backwards.empty());
  }
  EXPECT_NE(documents_of(plan.step(1)), documents_of(plan.step(steps_per_epoch(plan)[0] + 1)));
}

TEST(RunPlan, TellsWhatTheStartLinePrints) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(8, 20));
  const RunPlan plan(store, options_with(2, 2));
  EXPECT_EQ(plan.rows_per_epoch(), 4);
  EXPECT_DOUBLE_EQ(plan.packing_efficiency(), 0.8);
  EXPECT_DOUBLE_EQ(plan.documents_per_step(), 4);
  EXPECT_DOUBLE_EQ(plan.tokens_per_step(), 80);
}

TEST(RunPlan, RefusesWhatCannotBeTrained) {
  EXPECT_THROW(RunPlan(DocumentStore(), options_with(1, 1)), DataError);
  PlanOptions short_rows = options_with(1, 1);
  short_rows.max_seq_len = 2;
  EXPECT_THROW(RunPlan(documents(3, 60), short_rows), DataError);
  const DocumentStore store = documents(10, 5);
  EXPECT_THROW(RunPlan(store, options_with(0, 1)), ConfigError);
  EXPECT_THROW(RunPlan(store, options_with(1, 0)), ShapeError);
  EXPECT_THROW(RunPlan(store, options_with(1, 1)).step(0), ShapeError);
}

// Golden, as above: order and packing of two epochs together.
TEST(PlanRows, StayWhatTheyAre) {
  const DocumentStore store = store_of({30, 50, 1, 20, 49, 50, 10, 40, 25, 26});
  using Lists = std::vector<Documents>;
  std::vector<Lists> epochs(2);
  for (const int epoch : {0, 1}) {
    const Rows rows = plan_rows(store, options_with(1, 1), epoch);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      epochs[static_cast<std::size_t>(epoch)].emplace_back(rows[r].begin(), rows[r].end());
    }
  }
  EXPECT_EQ(epochs[0], (Lists{{8}, {4, 2}, {0, 3}, {5}, {9}, {7, 6}, {1}}));
  EXPECT_EQ(epochs[1], (Lists{{7, 6}, {1}, {0, 3}, {9}, {4, 2}, {5}, {8}}));
}

TEST(PlanRows, FillRowsInOrderWithoutShuffle) {
  PlanOptions options = options_with(1, 1);
  options.shuffle = false;
  const Rows rows = plan_rows(store_of({20, 40, 30, 10, 10}), options, 3);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(Documents(rows[0].begin(), rows[0].end()), (Documents{0}));
  EXPECT_EQ(Documents(rows[1].begin(), rows[1].end()), (Documents{1}));
  EXPECT_EQ(Documents(rows[2].begin(), rows[2].end()), (Documents{2, 3, 4}));
}

TEST(PlanEvaluation, RunsThroughAllDocumentsInFileOrder) {
  const DocumentStore store = documents(30, 40);
  Documents seen;
  for (const auto& micro_batch : plan_evaluation(store, 50, true, 3)) {
    seen.insert(seen.end(), micro_batch.documents.begin(), micro_batch.documents.end());
  }
  EXPECT_EQ(seen, epoch_order(30, 0, 0, false));
}

}  // namespace
}  // namespace lora_train::data
