#include "generate/generator_parts.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/expect_refused.h"

namespace lora_train::generate {
namespace {

TEST(Logits, OneThatIsNotFiniteIsEnough) {
  const float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(are_finite(std::vector<float>{0, largest, -largest, std::numeric_limits<float>::denorm_min()}));
  for (const float wrong : {infinity, -infinity, std::nanf(""), -std::nanf("")}) {
    for (std::size_t i = 0; i < 37; ++i) {
      std::vector<float> logits(37, 1.5F);
      logits[i] = wrong;
      EXPECT_FALSE(are_finite(logits)) << wrong << " at " << i;
    }
  }
}

TEST(Logits, RefusalNamesPromptAndPosition) {
  testing_support::expect_refused([] { refuse_logits("prompts.jsonl:7", 12); }, "prompts.jsonl:7", {"after token 12"},
                                  ExitCode::kNumeric);
}

TEST(CachedTokens, AreReusedUpToTheFirstThatDiffers) {
  const CachedTokens left{{1, 2, 3, 4}};
  const auto num = [&](std::vector<std::int32_t> ids, std::optional<std::int64_t> adapter = {}) {
    return num_reusable(left, {.ids = std::move(ids), .adapter = adapter});
  };
  EXPECT_EQ(num({1, 2, 3, 4, 5, 6}), 4);
  EXPECT_EQ(num({1, 2, 7, 4, 5}), 2);
  EXPECT_EQ(num({9}), 0);
  EXPECT_EQ(num({1, 2, 3, 4}), 3);  // the last one gives the first new token
  EXPECT_EQ(num({1, 2}), 1);
  EXPECT_EQ(num({1, 2, 3, 4, 5}, kNoAdapter), 0);
  EXPECT_EQ(num_reusable({}, {.ids = {1, 2}}), 0);
  const auto with_states = [&](std::vector<std::int32_t> ids) {
    return num_reusable(left, {.ids = std::move(ids)}, true);
  };
  EXPECT_EQ(with_states({1, 2, 3, 4, 5, 6}), 4);
  EXPECT_EQ(with_states({1, 2, 7, 4, 5}), 0);
  EXPECT_EQ(with_states({1, 2, 3, 4}), 0);
}

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
