#include "lora_train/data/plan/plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/data/prepare.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

// Documents of 1 to `longest` tokens, of varied length.
DocumentStore documents(std::size_t count, std::size_t longest) {
  std::vector<std::uint32_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) lengths[i] = static_cast<std::uint32_t>(1 + (i * 7919 + 3) % longest);
  return store_of(lengths);
}

TEST(EpochOrder, IsAPermutationThatDependsOnSeedAndEpoch) {
  const auto order = epoch_order(100, 1, 0, true);
  EXPECT_EQ(sorted(order), in_order(100));
  EXPECT_EQ(order, epoch_order(100, 1, 0, true));
  for (const auto& other : {in_order(100), epoch_order(100, 1, 1, true), epoch_order(100, 2, 0, true)}) {
    EXPECT_NE(order, other);
  }
  EXPECT_EQ(epoch_order(100, 1, 0, false), in_order(100));
}

// The order is a promise: a run resumed by a later version must see the same rows.
TEST(EpochOrder, StaysWhatItIs) {
  EXPECT_EQ(epoch_order(8, 42, 0, true), (Documents{7, 4, 2, 5, 3, 0, 6, 1}));
  EXPECT_EQ(epoch_order(8, 42, 1, true), (Documents{2, 5, 0, 4, 3, 6, 7, 1}));
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
    EXPECT_EQ(sorted(seen), in_order(100));
    EXPECT_DOUBLE_EQ(plan.step(k).epoch_after, static_cast<double>(epoch + 1));
  }
  EXPECT_EQ(k, plan.total_steps());
  EXPECT_NE(documents_of(plan.step(1)), documents_of(plan.step(steps_per_epoch(plan)[0] + 1)));
  EXPECT_EQ(tokens, 3 * store.total_tokens());
}

TEST(RunPlan, TrainsTheLastSmallerBatch) {
  const DocumentStore store = documents(10, 5);
  const RunPlan plan(store, unpacked(options_with(4, 4, 2)));
  EXPECT_EQ(steps_per_epoch(plan), (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(plan.step(3).num_rows, 2);
  EXPECT_EQ(plan.step(4).num_rows, 4);
  EXPECT_DOUBLE_EQ(plan.step(1).epoch_after, 0.4);
}

TEST(RunPlan, DealsRowsInOrderAndNumbersDocumentsInTheStep) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(6, 25));
  const StepPlan step = RunPlan(store, unshuffled(options_with(3, 2))).step(1);
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
  PlanOptions options = unpacked(options_with(4, 4, 2));
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
  for (const PlanOptions& options : {options_with(4, 2, 2.5), unpacked(options_with(4, 2, 2.5))}) {
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
  PlanOptions options = unpacked(options_with(4, 4, 1e12 + 0.5));  // three steps an epoch
  const RunPlan plan(store, options);
  EXPECT_EQ(plan.total_steps(), 3'000'000'000'002);
  EXPECT_EQ(plan.step(3'000'000'001).epoch, 1'000'000'000);
  EXPECT_THROW(plan.step(plan.total_steps()), ConfigError);
  options.max_steps = 1'000'000'000;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 1'000'000'000);
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
  PlanOptions outside = options_with(1, 1);
  outside.world_size = outside.rank = 2;
  EXPECT_THROW(RunPlan(store, outside), ShapeError);
}

// Golden, as above: order and packing of two epochs together.
TEST(PlanRows, StayWhatTheyAre) {
  const DocumentStore store = store_of({30, 50, 1, 20, 49, 50, 10, 40, 25, 26});
  using Lists = std::vector<Documents>;
  EXPECT_EQ(as_lists(plan_rows(store, options_with(1, 1), 0)), (Lists{{8}, {4, 2}, {0, 3}, {5}, {9}, {7, 6}, {1}}));
  EXPECT_EQ(as_lists(plan_rows(store, options_with(1, 1), 1)), (Lists{{7, 6}, {1}, {0, 3}, {9}, {4, 2}, {5}, {8}}));
  EXPECT_EQ(as_lists(plan_rows(store_of({20, 40, 30, 10, 10}), unshuffled(options_with(1, 1)), 3)),
            (Lists{{0}, {1}, {2, 3, 4}}));
}

TEST(PlanEvaluation, RunsThroughAllDocumentsInFileOrder) {
  const DocumentStore store = documents(30, 40);
  Documents seen;
  for (const auto& micro_batch : plan_evaluation(store, 50, true, 3))
    seen.insert(seen.end(), micro_batch.documents.begin(), micro_batch.documents.end());
  EXPECT_EQ(seen, in_order(30));
}

std::vector<Documents> rows_of(const DocumentStore& store, const PlanOptions& options, int epoch) {
  return as_lists(plan_rows(store, options, epoch));
}

std::vector<int> times_seen(const DocumentStore& store, const PlanOptions& options, int epoch) {
  std::vector<int> times(store.size());
  const Rows rows = plan_rows(store, options, epoch);
  for (const std::uint32_t document : rows.documents()) ++times[document];
  return times;
}

TEST(PlanWeights, OfOneChangeNothing) {
  const DocumentStore store = store_of(random_lengths(200, 15, 50, 21));
  const PlanOptions packed = options_with(8, 2);
  for (const PlanOptions& plain : {packed, unpacked(packed), unshuffled(packed), unpacked(unshuffled(packed))}) {
    PlanOptions weighted = plain;
    weighted.ranges = {{0, 20, 1.0}, {20, 20, 1.0}, {20, 200, 1.0}};
    for (const int epoch : {0, 1, 5}) EXPECT_EQ(rows_of(store, weighted, epoch), rows_of(store, plain, epoch));
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
  PlanOptions options = unpacked(unshuffled(options_with(8, 2)));
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

PlanOptions documents_options(std::int64_t global, std::int64_t micro, double epochs = 1) {
  PlanOptions options = options_with(global, micro, epochs);
  options.batch_unit = BatchUnit::kDocuments;
  return options;
}

TEST(RunPlanDocuments, StepsFollowTheOrderAsWithoutPacking) {
  const DocumentStore store = store_of(random_lengths(101, 12, 50, 3));
  for (const bool shuffle : {true, false}) {
    PlanOptions options = documents_options(8, 3, 2.5), one_a_row = unpacked(options_with(8, 8, 2.5));
    options.shuffle = one_a_row.shuffle = shuffle;
    const RunPlan plan(store, options), reference(store, one_a_row);
    ASSERT_EQ(plan.total_steps(), reference.total_steps());
    EXPECT_EQ(plan.total_steps(), 13 + 13 + 7);
    for (std::int64_t k = plan.total_steps(); k >= 1; --k) {  // in no particular order
      const StepPlan step = plan.step(k), other = reference.step(k);
      EXPECT_EQ(sorted(documents_of(step)), sorted(documents_of(other))) << k;
      EXPECT_EQ(step.epoch, other.epoch);
      EXPECT_DOUBLE_EQ(step.epoch_after, other.epoch_after) << k;
      EXPECT_EQ(plan.ends_epoch(k), reference.ends_epoch(k)) << k;
      EXPECT_GE(50 * step.num_rows, step.num_tokens);
      EXPECT_LT(step.num_rows, step.num_documents);
      EXPECT_EQ(ceil_div(step.num_rows, 3), std::ssize(step.micro_batches));
      for (const auto& micro : step.micro_batches)  // dropout does not depend on packing
        for (std::size_t i = 0; i < micro.documents.size(); ++i)
          EXPECT_EQ(documents_of(other)[micro.document_in_step[i]], micro.documents[i]);
    }
  }
}

TEST(RunPlanDocuments, AMicroBatchFitsItsRows) {
  const auto lengths = random_lengths(400, 15, 50, 4);
  const DocumentStore store = store_of(lengths);
  const RunPlan plan(store, documents_options(32, 2));
  std::int64_t most = 0, rows = 0;
  for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
    const StepPlan step = plan.step(k);
    most = std::max(most, step.num_rows);
    rows += step.num_rows;
    for (const auto& micro : step.micro_batches) {
      const auto tokens = std::accumulate(micro.documents.begin(), micro.documents.end(), std::int64_t{0},
                                          [&](std::int64_t sum, std::uint32_t d) { return sum + lengths[d]; });
      EXPECT_LE(tokens, 2 * 50);
    }
  }
  EXPECT_EQ(plan.most_rows_of_rank(), most);
  EXPECT_DOUBLE_EQ(plan.documents_per_step(), 400.0 / 13);
  EXPECT_DOUBLE_EQ(plan.rows_per_step(), static_cast<double>(rows) / 13);
}

TEST(RunPlanDocuments, RanksShareTheDocumentsOfAStep) {
  const DocumentStore store = store_of(random_lengths(61, 12, 50, 5));
  for (const std::int64_t global : {2, 16}) {
    const RunPlan alone(store, documents_options(global, 2));
    for (const std::int64_t world_size : {2, 4, 7}) {
      for (std::int64_t k = 1; k <= alone.total_steps(); ++k) {
        PlanOptions options = documents_options(global, 2);
        options.world_size = world_size;
        const auto ranks = step_of_all_ranks(store, options, k);
        Documents all;
        for (const StepPlan& step : ranks) {
          const Documents own = documents_of(step);
          all.insert(all.end(), own.begin(), own.end());
          EXPECT_EQ(step.micro_batches.size(), ranks[0].micro_batches.size());
        }
        EXPECT_EQ(sorted(all), sorted(documents_of(alone.step(k))));
      }
    }
  }
}

// Packed before they are dealt, they would fill one row, and one rank alone would have work.
TEST(RunPlanDocuments, EveryRankHasWorkWhereOneRowHoldsTheStep) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(64, 3));
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    PlanOptions options = documents_options(16, 1);
    options.world_size = 4;
    options.rank = rank;
    const RunPlan plan(store, options);
    for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
      EXPECT_EQ(documents_of(plan.step(k)).size(), 4U);
      EXPECT_EQ(plan.step(k).num_rows, 4);
    }
    EXPECT_EQ(plan.most_rows_of_rank(), 1);
  }
}

TEST(RunPlanDocuments, WeightsCountStepsByTheDocumentsOfEachEpoch) {
  const DocumentStore store = store_of(random_lengths(30, 12, 50, 6));
  PlanOptions options = documents_options(4, 2, 3);
  options.ranges = {{0, 10, 0.25}, {10, 30, 1.0}};  // 2, 3 and 2 documents of the first range
  const RunPlan plan(store, options);
  EXPECT_EQ(steps_per_epoch(plan), (std::vector<std::int64_t>{6, 6, 6}));
  EXPECT_EQ(plan.step(6).num_documents, 2);
  EXPECT_EQ(plan.step(12).num_documents, 3);
}

TEST(ResolveBatchSizes, AMicroBatchHasNoMoreRowsThanAStepOfDocumentsFills) {
  ScheduleSection section;
  section.batch_unit = BatchUnit::kDocuments;
  section.global_batch_size = 16;
  EXPECT_EQ(resolve_batch_sizes(section, 2048, 16384, 1, 3).micro, 3);
  EXPECT_EQ(resolve_batch_sizes(section, 2048, 4096, 1, 3).micro, 2) << "need not divide";
  EXPECT_EQ(resolve_batch_sizes(section, 2048, 16384, 2, 3).micro, 3) << "of a rank";
  EXPECT_EQ(resolve_batch_sizes(section, 2048, 16384, 4).micro, 4) << "not known: as many as documents";
  section.global_batch_size.reset();
  section.micro_batch_size = 8;
  section.gradient_accumulation_steps = 2;
  const BatchSizes sizes = resolve_batch_sizes(section, 2048, 16384, 4, 3);
  EXPECT_EQ(sizes.global, 64);
  EXPECT_EQ(sizes.micro, 3);
}

}  // namespace
}  // namespace lora_train::data
