// batch_unit: documents. A step has a fixed number of documents, packed into as few rows as they need.
#include <gtest/gtest.h>

#include <numeric>

#include "lora_train/base/ceil_div.h"
#include "lora_train/data/plan/plan.h"
#include "lora_train/data/prepare.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

PlanOptions documents_options(std::int64_t global, std::int64_t micro, double epochs = 1) {
  PlanOptions options = options_with(global, micro, epochs);
  options.batch_unit = BatchUnit::kDocuments;
  return options;
}

Documents sorted(Documents documents) {
  std::sort(documents.begin(), documents.end());
  return documents;
}

TEST(RunPlanDocuments, StepsFollowTheOrderAsWithoutPacking) {
  const auto lengths = random_lengths(101, 12, 50, 3);
  const DocumentStore store = store_of(lengths);
  for (const bool shuffle : {true, false}) {
    PlanOptions options = documents_options(8, 3, 2.5), unpacked = options_with(8, 8, 2.5);
    options.shuffle = unpacked.shuffle = shuffle;
    unpacked.packing = false;
    const RunPlan plan(store, options), reference(store, unpacked);
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
      for (const auto& micro : step.micro_batches) {  // dropout does not depend on packing
        for (std::size_t i = 0; i < micro.documents.size(); ++i)
          EXPECT_EQ(documents_of(other)[micro.document_in_step[i]], micro.documents[i]);
      }
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
        Documents all;
        std::vector<std::size_t> num_micro_batches;
        for (std::int64_t rank = 0; rank < world_size; ++rank) {
          PlanOptions options = documents_options(global, 2);
          options.world_size = world_size;
          options.rank = rank;
          const StepPlan step = RunPlan(store, options).step(k);
          const Documents own = documents_of(step);
          all.insert(all.end(), own.begin(), own.end());
          num_micro_batches.push_back(step.micro_batches.size());
        }
        EXPECT_EQ(sorted(all), sorted(documents_of(alone.step(k))));
        EXPECT_EQ(num_micro_batches, std::vector(num_micro_batches.size(), num_micro_batches[0]));
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
