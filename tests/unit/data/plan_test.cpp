#include "lora_train/data/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lora_train/base/error.h"
#include "store_builder.h"

namespace lora_train::data {
namespace {

using Documents = std::vector<std::uint32_t>;

// Documents of 1 to `longest` tokens, of varied length.
DocumentStore documents(std::size_t count, std::size_t longest) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::int32_t> ids(1 + (i * 7919 + 3) % longest, 1);
    builder.append(ids, ids, file, i + 1);
  }
  return builder.build();
}

PlanOptions options_with(std::int64_t global, std::int64_t micro, double epochs = 1) {
  return {.max_seq_len = 50,
          .packing = true,
          .shuffle = true,
          .seed = 7,
          .global_batch_size = global,
          .micro_batch_size = micro,
          .num_epochs = epochs,
          .max_steps = std::nullopt};
}

Documents documents_of(const StepPlan& step) {
  Documents out;
  for (const auto& micro_batch : step.micro_batches) {
    out.insert(out.end(), micro_batch.documents.begin(), micro_batch.documents.end());
  }
  return out;
}

TEST(Packing, EveryDocumentOnceAndNoRowTooLong) {
  const std::vector<std::int64_t> lengths = {30, 50, 1, 20, 49, 50, 10, 40, 25, 26};
  Documents order(lengths.size());
  std::iota(order.rbegin(), order.rend(), 0U);
  Documents seen;
  for (const Row& row : pack(order, lengths, 50, PackingMethod::kNextFit)) {
    std::int64_t tokens = 0;
    for (const auto document : row.documents) {
      seen.push_back(document);
      tokens += lengths[document];
    }
    EXPECT_LE(tokens, 50);
    EXPECT_GT(tokens, 0);
  }
  EXPECT_EQ(seen, order);
}

TEST(Packing, FillsARowToItsLastToken) {
  const auto rows = pack(Documents{0, 1, 2, 3}, std::vector<std::int64_t>{20, 30, 1, 50}, 50, PackingMethod::kNextFit);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].documents, (Documents{0, 1}));
  EXPECT_EQ(rows[1].documents, (Documents{2}));
  EXPECT_EQ(rows[2].documents, (Documents{3}));
}

TEST(Packing, OffMeansOneDocumentARow) {
  EXPECT_EQ(pack(Documents{1, 0}, std::vector<std::int64_t>{1, 1}, 50, PackingMethod::kNone).size(), 2U);
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
  ASSERT_EQ(plan.steps_per_epoch().size(), 3U);
  std::int64_t k = 0, tokens = 0;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    Documents seen;
    for (std::int64_t i = 0; i < plan.steps_per_epoch()[epoch]; ++i) {
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
  EXPECT_EQ(plan.steps_per_epoch(), (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(plan.step(3).num_rows, 2);
  EXPECT_EQ(plan.step(4).num_rows, 4);
  EXPECT_EQ(plan.step(3).epoch, 0);
  EXPECT_EQ(plan.step(4).epoch, 1);
  EXPECT_DOUBLE_EQ(plan.step(1).epoch_after, 0.4);
}

TEST(RunPlan, DealsRowsInOrderAndNumbersDocumentsInTheStep) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  for (std::uint64_t i = 0; i < 6; ++i) {
    builder.append(std::vector<std::int32_t>(25, 1), std::vector<std::int32_t>(25, 1), file, i + 1);
  }
  const DocumentStore store = builder.build();
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
  EXPECT_EQ(RunPlan(store, options).steps_per_epoch(), (std::vector<std::int64_t>{3, 2}));
  options.max_steps = 100;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 6);
  options.num_epochs = std::nullopt;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 100);
  options.max_steps = std::nullopt;
  EXPECT_THROW(RunPlan(store, options), ConfigError);
  options.num_epochs = 1.5;  // half of three steps, rounded up
  EXPECT_EQ(RunPlan(store, options).steps_per_epoch(), (std::vector<std::int64_t>{3, 2}));
  options.num_epochs = 0.1;
  EXPECT_EQ(RunPlan(store, options).total_steps(), 1);
}

TEST(RunPlan, StepIsTheSameInWhateverOrderItIsAskedFor) {
  const DocumentStore store = documents(60, 40);
  const RunPlan plan(store, options_with(4, 2, 3)), again(store, options_with(4, 2, 3));
  for (std::int64_t k = plan.total_steps(); k >= 1; --k) {
    const auto backwards = documents_of(again.step(k));
    EXPECT_EQ(backwards, documents_of(plan.step(k)));
    EXPECT_FALSE(backwards.empty());
  }
  EXPECT_NE(documents_of(plan.step(1)), documents_of(plan.step(plan.steps_per_epoch()[0] + 1)));
}

TEST(RunPlan, TellsWhatTheStartLinePrints) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  for (std::uint64_t i = 0; i < 8; ++i) {
    builder.append(std::vector<std::int32_t>(20, 1), std::vector<std::int32_t>(20, 1), file, i + 1);
  }
  const DocumentStore store = builder.build();
  const RunPlan plan(store, options_with(2, 2));
  EXPECT_EQ(plan.rows_per_epoch(), 4);
  EXPECT_DOUBLE_EQ(plan.packing_efficiency(), 0.8);
  EXPECT_DOUBLE_EQ(plan.documents_per_step(), 4);
  EXPECT_DOUBLE_EQ(plan.tokens_per_step(), 80);
}

TEST(RunPlan, RefusesWhatCannotBeTrained) {
  EXPECT_THROW(RunPlan(DocumentStore(), options_with(1, 1)), DataError);
  EXPECT_THROW(RunPlan(documents(3, 60), PlanOptions{.max_seq_len = 2, .num_epochs = 1, .max_steps = {}}), DataError);
  const DocumentStore store = documents(10, 5);
  EXPECT_THROW(RunPlan(store, options_with(0, 1)), ConfigError);
  EXPECT_THROW(RunPlan(store, options_with(1, 0)), ConfigError);
  EXPECT_THROW(RunPlan(store, options_with(1, 1)).step(0), ShapeError);
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
