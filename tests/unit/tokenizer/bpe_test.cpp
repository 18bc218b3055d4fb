// The merge loop against the obvious one.
#include "tokenizer/bpe/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace lora_train::tokenizer {
namespace {

// Merges the first of the lowest-ranked pairs until there is none.
std::vector<std::int32_t> merge_plainly(const MergeTable& table, std::vector<std::int32_t> ids) {
  for (;;) {
    const Merge* best = nullptr;
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* merge = table.find(ids[i], ids[i + 1]);
      if (merge == nullptr || (best != nullptr && merge->rank >= best->rank)) continue;
      best = merge;
      where = i;
    }
    if (best == nullptr) return ids;
    ids[where] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

TEST(Bpe, EveryLengthMergesLikeTheObviousLoop) {
  std::mt19937 random(7);
  MergeTable table;
  for (std::int32_t id = 4; id < 200; ++id) {
    const auto pick = [&] { return static_cast<std::int32_t>(random() % static_cast<unsigned>(id)); };
    table.add(pick(), pick(), {static_cast<std::uint32_t>(random() % 60), id});  // ranks repeat, as scores do
  }
  for (std::size_t length = 0; length < 300; ++length) {
    std::vector<std::int32_t> ids;
    std::vector<Symbol> symbols;
    for (std::size_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<std::int32_t>(random() % 4));
      symbols.push_back({ids.back(), 1});
    }
    merge_symbols(table, symbols);
    std::vector<std::int32_t> got;
    std::size_t covered = 0;
    for (const Symbol& symbol : symbols) {
      got.push_back(symbol.id);
      covered += symbol.length;
    }
    ASSERT_EQ(got, merge_plainly(table, ids)) << length;
    ASSERT_EQ(covered, length);
  }
}

TEST(Bpe, NegativeIdsNeverMerge) {
  MergeTable table;
  EXPECT_EQ(table.find(-1, -1), nullptr);
  EXPECT_EQ(table.find(-1, 0), nullptr);
}

}  // namespace
}  // namespace lora_train::tokenizer
