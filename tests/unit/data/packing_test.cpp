#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lora_train/data/plan/epoch_rows.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

using Lengths = std::vector<std::uint32_t>;

constexpr PhiloxKey kKey{1, 2};

Documents in_order(std::size_t count) {
  Documents order(count);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

std::vector<Documents> as_lists(const Rows& rows) {
  std::vector<Documents> lists;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    lists.emplace_back(rows[r].begin(), rows[r].end());
  }
  return lists;
}

std::vector<Documents> sorted(std::vector<Documents> lists) {
  std::sort(lists.begin(), lists.end());
  return lists;
}

Documents all_documents(const Rows& rows) {
  Documents seen;
  for (const auto& row : as_lists(rows)) {
    seen.insert(seen.end(), row.begin(), row.end());
  }
  return seen;
}

void expect_rows_within(const Rows& rows, const Lengths& lengths, std::uint32_t max_seq_len) {
  for (const auto& row : as_lists(rows)) {
    std::uint32_t tokens = 0;
    for (const auto document : row) {
      tokens += lengths[document];
    }
    ASSERT_GT(tokens, 0U);
    ASSERT_LE(tokens, max_seq_len);
  }
}

TEST(Packing, OffMeansOneDocumentARow) {
  EXPECT_EQ(as_lists(one_document_a_row(Documents{1, 0, 1})), (std::vector<Documents>{{1}, {0}, {1}}));
  EXPECT_EQ(one_document_a_row({}).size(), 0U);
}

TEST(NextFit, KeepsTheOrderAndOverfillsNoRow) {
  const Lengths lengths = {30, 50, 1, 20, 49, 50, 10, 40, 25, 26};
  Documents order = in_order(lengths.size());
  std::reverse(order.begin(), order.end());
  const Rows rows = pack_next_fit(order, lengths, 50);
  expect_rows_within(rows, lengths, 50);
  EXPECT_EQ(all_documents(rows), order);
}

TEST(NextFit, FillsARowToItsLastToken) {
  const Rows rows = pack_next_fit(Documents{0, 1, 2, 3}, Lengths{20, 30, 1, 50}, 50);
  EXPECT_EQ(as_lists(rows), (std::vector<Documents>{{0, 1}, {2}, {3}}));
}

TEST(FirstFitDecreasing, TakesTheLongestFirstIntoTheFirstRowWithRoom) {
  const Lengths lengths = {4, 8, 1, 4, 2, 1, 5, 5};
  const Rows rows = pack_first_fit_decreasing(in_order(8), lengths, 10, kKey);
  EXPECT_EQ(sorted(as_lists(rows)), (std::vector<Documents>{{0, 3, 2, 5}, {1, 4}, {6, 7}}));
}

TEST(FirstFitDecreasing, EqualLengthsGoInTheOrderGiven) {
  const Rows rows = pack_first_fit_decreasing(Documents{3, 1, 2, 0}, Lengths{5, 5, 5, 5}, 10, kKey);
  EXPECT_EQ(sorted(as_lists(rows)), (std::vector<Documents>{{2, 0}, {3, 1}}));
}

TEST(FirstFitDecreasing, HasEveryDocumentOnceAndOverfillsNoRow) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const std::size_t count = 1 + seed * seed;
    const std::uint32_t max_seq_len = 1 + seed * 37 % 4096;
    const std::size_t window = 1 + seed * 91 % 700;
    const Lengths lengths = random_lengths(count, 0.15 * max_seq_len, max_seq_len, seed);
    const Rows rows = pack_first_fit_decreasing(in_order(count), lengths, max_seq_len, kKey, window);
    expect_rows_within(rows, lengths, max_seq_len);
    Documents seen = all_documents(rows);
    EXPECT_EQ(rows.documents().size(), count);
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, in_order(count)) << "seed " << seed;
  }
}

TEST(FirstFitDecreasing, ADocumentThatOccursTwiceIsThereTwice) {
  const Rows rows = pack_first_fit_decreasing(Documents{0, 1, 0}, Lengths{6, 4}, 10, kKey);
  EXPECT_EQ(sorted(as_lists(rows)), (std::vector<Documents>{{0}, {0, 1}}));
}

TEST(FirstFitDecreasing, PacksOnlyInsideEqualWindows) {
  const Lengths lengths(10, 1);  // all would fit into one row; windows of at most 4 are of 3, 3 and 4
  const Rows rows = pack_first_fit_decreasing(in_order(10), lengths, 100, kKey, 4);
  EXPECT_EQ(as_lists(rows), (std::vector<Documents>{{0, 1, 2}, {3, 4, 5}, {6, 7, 8, 9}}));
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

TEST(FirstFitDecreasing, WhatIsInARowSaysNothingAboutItsPlace) {
  const Lengths lengths = random_lengths(8000, 200, 2048, 3);
  const Rows rows = pack_first_fit_decreasing(in_order(8000), lengths, 2048, kKey);
  // Unshuffled, long documents would fill the first half of the rows and short ones the second.
  std::size_t in_first_half = 0;
  for (std::size_t r = 0; r < rows.size() / 2; ++r) {
    in_first_half += rows[r].size();
  }
  EXPECT_NEAR(static_cast<double>(in_first_half), 4000, 300);
}

// The order is a promise: a run resumed by a later version must see the same rows.
TEST(FirstFitDecreasing, StaysWhatItIs) {
  const Lengths lengths = {30, 50, 1, 20, 49, 50, 10, 40, 25, 26};
  const Rows rows = pack_first_fit_decreasing(in_order(10), lengths, 50, kKey);
  EXPECT_EQ(as_lists(rows), (std::vector<Documents>{{7, 6}, {4, 2}, {1}, {8}, {0, 3}, {9}, {5}}));
}

}  // namespace
}  // namespace lora_train::data
