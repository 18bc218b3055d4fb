#include "generate/generator_parts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lora_train/base/error.h"

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
  try {
    refuse_logits("prompts.jsonl:7", 12);
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("after token 12"), std::string::npos) << error.what();
    EXPECT_EQ(error.where(), "prompts.jsonl:7");
  }
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
}

}  // namespace
}  // namespace lora_train::generate
