#include "lora_train/data/plan/epoch_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "lora_train/base/error.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

using Lengths = std::vector<std::uint32_t>;

constexpr PhiloxKey kKey{1, 2};

Documents all_documents(const Rows& rows) {
  Documents seen;
  for (const auto& row : as_lists(rows)) seen.insert(seen.end(), row.begin(), row.end());
  EXPECT_EQ(rows.documents().size(), seen.size());
  return seen;
}

void expect_rows_within(const Rows& rows, const Lengths& lengths, std::uint32_t max_seq_len) {
  for (const auto& row : as_lists(rows)) {
    std::uint32_t tokens = 0;
    for (const auto document : row) tokens += lengths[document];
    ASSERT_GT(tokens, 0U);
    ASSERT_LE(tokens, max_seq_len);
  }
}

TEST(Packing, OffMeansOneDocumentARow) {
  EXPECT_EQ(as_lists(one_document_a_row(Documents{1, 0, 1})), (std::vector<Documents>{{1}, {0}, {1}}));
  EXPECT_EQ(one_document_a_row({}).size(), 0U);
}

TEST(NextFit, KeepsTheOrderAndFillsARowToItsLastTokenOnly) {
  EXPECT_EQ(as_lists(pack_next_fit(Documents{0, 1, 2, 3}, Lengths{20, 30, 1, 50}, 50)),
            (std::vector<Documents>{{0, 1}, {2}, {3}}));
  const Lengths lengths = {30, 50, 1, 20, 49, 50, 10, 40, 25, 26};
  Documents order = in_order(lengths.size());
  std::reverse(order.begin(), order.end());
  const Rows rows = pack_next_fit(order, lengths, 50);
  expect_rows_within(rows, lengths, 50);
  EXPECT_EQ(all_documents(rows), order);
}

TEST(FirstFitDecreasing, TakesTheLongestOfAWindowFirstIntoTheFirstRowWithRoom) {
  const auto packed = [](const Documents& order, const Lengths& lengths) {
    return sorted(as_lists(pack_first_fit_decreasing(order, lengths, 10, kKey)));
  };
  EXPECT_EQ(packed(in_order(8), {4, 8, 1, 4, 2, 1, 5, 5}), (std::vector<Documents>{{0, 3, 2, 5}, {1, 4}, {6, 7}}));
  EXPECT_EQ(packed({3, 1, 2, 0}, {5, 5, 5, 5}), (std::vector<Documents>{{2, 0}, {3, 1}})) << "in the order given";
  EXPECT_EQ(packed({0, 1, 0}, {6, 4}), (std::vector<Documents>{{0}, {0, 1}})) << "a document that occurs twice";
  // All would fit into one row; windows of at most 4 are of 3, 3 and 4.
  EXPECT_EQ(as_lists(pack_first_fit_decreasing(in_order(10), Lengths(10, 1), 100, kKey, 4)),
            (std::vector<Documents>{{0, 1, 2}, {3, 4, 5}, {6, 7, 8, 9}}));
}

TEST(FirstFitDecreasing, HasEveryDocumentOnceAndOverfillsNoRow) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const std::size_t count = 1 + seed * seed;
    const std::uint32_t max_seq_len = 1 + seed * 37 % 4096;
    const std::size_t window = 1 + seed * 91 % 700;
    const Lengths lengths = random_lengths(count, 0.15 * max_seq_len, max_seq_len, seed);
    const Rows rows = pack_first_fit_decreasing(in_order(count), lengths, max_seq_len, kKey, window);
    expect_rows_within(rows, lengths, max_seq_len);
    ASSERT_EQ(sorted(all_documents(rows)), in_order(count)) << "seed " << seed;
  }
}

TEST(FirstFitDecreasing, NeedsFewerRowsThanNextFit) {
  for (const double median : {40.0, 150.0, 600.0, 1500.0}) {
    const Lengths lengths = random_lengths(20'000, median, 4096, 5);
    const std::size_t next_fit = pack_next_fit(in_order(20'000), lengths, 4096).size();
    const Rows rows = pack_first_fit_decreasing(in_order(20'000), lengths, 4096, kKey);
    EXPECT_LT(rows.size(), next_fit) << median;
    const double filled = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0ULL)) /
                          (4096.0 * static_cast<double>(rows.size()));
    EXPECT_GT(filled, median < 1000 ? 0.98 : 0.93) << median;
  }
}

// The order is a promise: a run resumed by a later version must see the same rows.
TEST(FirstFitDecreasing, StaysWhatItIs) {
  const Lengths lengths = {30, 50, 1, 20, 49, 50, 10, 40, 25, 26};
  const Rows rows = pack_first_fit_decreasing(in_order(10), lengths, 50, kKey);
  EXPECT_EQ(as_lists(rows), (std::vector<Documents>{{7, 6}, {4, 2}, {1}, {8}, {0, 3}, {9}, {5}}));
}

using Bins = std::vector<std::vector<std::uint32_t>>;

TEST(DealEvenly, GivesTheMostExpensiveFirstToTheCheapestBinThatIsNotFull) {
  // 9 | 7; 6 to the second (13), 5 to the first (14), 4 to the second (17), which is full then, 1 to the first.
  EXPECT_EQ(deal_evenly(std::vector<double>{9, 7, 6, 5, 4, 1}, 2), (Bins{{0, 3, 5}, {1, 2, 4}}));
  // By cost alone the second bin would take everything but the first thing.
  EXPECT_EQ(deal_evenly(std::vector<double>{100, 1, 1, 1, 1}, 2), (Bins{{0, 4}, {1, 2, 3}}));
  EXPECT_EQ(deal_evenly(std::vector<double>{1, 2}, 3), (Bins{{1}, {0}, {}}));
  EXPECT_EQ(deal_evenly({}, 2), (Bins{{}, {}}));
}

// What document stands behind each ordinal of the step, over the given ranks.
std::map<std::uint32_t, std::uint32_t> documents_by_ordinal(const std::vector<StepPlan>& ranks) {
  std::map<std::uint32_t, std::uint32_t> documents;
  for (const StepPlan& step : ranks) {
    for (const MicroBatchPlan& micro_batch : step.micro_batches) {
      for (std::size_t i = 0; i < micro_batch.documents.size(); ++i) {
        EXPECT_TRUE(documents.emplace(micro_batch.document_in_step[i], micro_batch.documents[i]).second);
      }
    }
  }
  return documents;
}

void expect_equal_steps(const std::vector<StepPlan>& ranks, const StepPlan& alone) {
  for (const StepPlan& rank : ranks) {
    EXPECT_EQ(rank.micro_batches.size(), ranks[0].micro_batches.size());
    EXPECT_FALSE(rank.micro_batches.empty());
    EXPECT_EQ(rank.step, alone.step);
    EXPECT_EQ(rank.epoch, alone.epoch);
    EXPECT_EQ(rank.num_rows, alone.num_rows);
    EXPECT_EQ(rank.num_documents, alone.num_documents);
    EXPECT_EQ(rank.num_tokens, alone.num_tokens);
    EXPECT_EQ(rank.num_supervised, alone.num_supervised);
    EXPECT_EQ(rank.epoch_after, alone.epoch_after);
  }
}

void expect_no_micro_batch_too_large(const std::vector<StepPlan>& ranks, const DocumentStore& store,
                                     const PlanOptions& options) {
  for (const StepPlan& rank : ranks) {
    for (const MicroBatchPlan& micro_batch : rank.micro_batches) {
      std::int64_t tokens = 0;
      for (const auto document : micro_batch.documents) tokens += store.num_tokens(document);
      EXPECT_LE(tokens, options.micro_batch_size * options.max_seq_len);
      if (!options.packing) {
        EXPECT_LE(std::ssize(micro_batch.documents), options.micro_batch_size);
      }
    }
  }
}

TEST(RunPlanRanks, TogetherHoldTheStepOfOneRankForEveryWorldAndMicroBatchSize) {
  const DocumentStore store = store_of(random_lengths(61, 14, 50, 11));
  for (const bool packing : {true, false}) {
    PlanOptions options = options_with(9, 100);
    options.packing = packing;
    const RunPlan reference(store, options);
    ASSERT_NE(reference.rows_per_epoch() % 9, 0) << "the last step is to be a small one";
    for (options.world_size = 1; options.world_size <= 8; ++options.world_size) {
      for (const std::int64_t micro : {1, 2, 3, 5, 100}) {
        options.micro_batch_size = micro;
        for (std::int64_t k = 1; k <= reference.total_steps(); ++k) {
          const StepPlan alone = reference.step(k);
          const auto ranks = step_of_all_ranks(store, options, k);
          EXPECT_EQ(documents_by_ordinal(ranks), documents_by_ordinal({alone}));
          expect_equal_steps(ranks, alone);
          expect_no_micro_batch_too_large(ranks, store, options);
          ASSERT_FALSE(HasFailure()) << "world " << options.world_size << ", micro " << micro << ", step " << k;
        }
      }
    }
  }
}

TEST(RunPlanRanks, WithoutARowHaveEmptyMicroBatchesAndTheNumbersOfTheStep) {
  const DocumentStore store = store_of({20, 30});
  PlanOptions options = unpacked(options_with(4, 1));
  options.world_size = 4;
  std::size_t with_rows = 0;
  for (const StepPlan& rank : step_of_all_ranks(store, options, 1)) {
    ASSERT_EQ(rank.micro_batches.size(), 1U);
    with_rows += rank.micro_batches[0].documents.size();
    EXPECT_EQ(rank.num_supervised, 48);
    EXPECT_EQ(rank.num_rows, 2);
  }
  EXPECT_EQ(with_rows, 2U);
}

double cost_of(const StepPlan& rank, const DocumentStore& store, double attention_cost) {
  double cost = 0;
  for (const auto document : documents_of(rank)) {
    const auto length = static_cast<double>(store.num_tokens(document));
    cost += length + attention_cost * length * length;
  }
  return cost;
}

TEST(RunPlanRanks, GetAsManyRowsGiveOrTakeOneAndFillEveryMicroBatch) {
  const DocumentStore store = store_of(random_lengths(43, 14, 50, 12));
  PlanOptions options = unpacked(options_with(11, 2));
  options.world_size = 4;
  std::multiset<std::size_t> counts;
  for (const StepPlan& rank : step_of_all_ranks(store, options, 1)) {
    counts.insert(documents_of(rank).size());
    for (const auto& micro_batch : rank.micro_batches) EXPECT_FALSE(micro_batch.documents.empty());
  }
  EXPECT_EQ(counts, (std::multiset<std::size_t>{2, 3, 3, 3}));
}

TEST(RunPlanRanks, CostAboutTheSame) {
  const DocumentStore store = store_of(random_lengths(640, 300, 1024, 13));
  PlanOptions options = options_with(64, 2);
  options.max_seq_len = 1024;
  options.packing = false;
  options.world_size = 8;
  for (std::int64_t k = 1; k <= 10; ++k) {
    double sum = 0, most = 0;
    for (const StepPlan& rank : step_of_all_ranks(store, options, k)) {
      const double cost = cost_of(rank, store, options.attention_cost);
      sum += cost;
      most = std::max(most, cost);
    }
    EXPECT_LT(most, 1.1 * sum / 8) << "step " << k;  // dealt in turn it is 1.3 to 2
  }
}

TEST(RunPlanRanks, AttentionCostTellsALongDocumentFromManyShortOnes) {
  // Four rows of 50 tokens: one document, fifty documents, one, fifty.
  std::vector<std::uint32_t> lengths = {50};
  lengths.insert(lengths.end(), 50, 1);
  lengths.push_back(50);
  lengths.insert(lengths.end(), 50, 1);
  const DocumentStore store = store_of(lengths);
  PlanOptions options = unshuffled(options_with(4, 2));
  options.world_size = 2;
  options.attention_cost = 0;
  const auto by_tokens = step_of_all_ranks(store, options, 1);
  EXPECT_EQ(documents_of(by_tokens[0]).size(), 2U);  // rows 1 and 3: all cost the same
  options.attention_cost = 1;
  const auto by_cost = step_of_all_ranks(store, options, 1);
  EXPECT_EQ(documents_of(by_cost[0]).size(), 51U);
  EXPECT_EQ(documents_of(by_cost[1]).size(), 51U);
}

}  // namespace
}  // namespace lora_train::data
