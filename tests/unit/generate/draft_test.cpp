#include <gtest/gtest.h>

#include "generator_parts.h"

namespace lora_train::generate {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Draft, IsWhatFollowedTheSameWordsBefore) {
  EXPECT_EQ(draft_of(Ids{7, 1, 2, 3, 4, 5, 1, 2}, 3), (Ids{3, 4, 5}));
  EXPECT_EQ(draft_of(Ids{7, 1, 2, 3, 1}, 9), (Ids{2, 3, 1}));  // to the end of the answer
  EXPECT_EQ(draft_of(Ids{5, 5}, 2), (Ids{5}));
}

TEST(Draft, PrefersTheLongerEndingAndThenTheLaterPlace) {
  EXPECT_EQ(draft_of(Ids{1, 2, 3, 8, 9, 3, 7, 1, 2, 3}, 1), (Ids{8}));
  EXPECT_EQ(draft_of(Ids{3, 8, 3, 9, 3}, 1), (Ids{9}));
  EXPECT_EQ(draft_of(Ids{0, 1, 2, 3, 8, 9, 1, 2, 3, 7, 0, 1, 2, 3}, 1),
            (Ids{7}));  // endings of more than three are equal
}

TEST(Draft, IsEmptyWhereTheLastTokenIsNew) {
  EXPECT_EQ(draft_of(Ids{1, 2, 3, 4}, 3), Ids());
  EXPECT_EQ(draft_of(Ids{1}, 3), Ids());
  EXPECT_EQ(draft_of(Ids{1, 1, 1, 1}, 0), Ids());
}

TEST(DraftLength, GrowsWhileAllGuessesAreRight) {
  DraftLength length;
  EXPECT_EQ(length.next(3), 1u);
  length.record(1, 1);
  EXPECT_EQ(length.next(3), 2u);
  length.record(2, 2);
  length.record(3, 3);
  EXPECT_EQ(length.next(3), 3u);
  length.record(3, 1);
  EXPECT_EQ(length.next(3), 1u);
  length.record(1, 0);
  length.record(0, 0);
  EXPECT_EQ(length.next(3), 1u);
  EXPECT_EQ(length.next(0), 0u);
}

}  // namespace
}  // namespace lora_train::generate
