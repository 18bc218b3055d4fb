#include "lora_train/tokenizer/split/text_pattern.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "support/refusal.h"

namespace lora_train::tokenizer {
namespace {

TEST(TextPattern, GivesTheFirstGroupThatTookPart) {
  const TextPattern gsm8k("#### (-?[0-9.,]+)", "--exact-match");
  EXPECT_EQ(gsm8k.find("so 3 and 4\n#### -1,234.5\n#### 7"), "-1,234.5");
  EXPECT_EQ(gsm8k.find("1234"), std::nullopt);
  const TextPattern either("(yes)|(no)", "--exact-match");
  EXPECT_EQ(either.find("oh no"), "no");
  EXPECT_EQ(TextPattern("([a-z]+)=([0-9]+)", "x").find("a=1"), "a");
}

TEST(TextPattern, GivesTheWholeMatchWithoutGroups) {
  EXPECT_EQ(TextPattern("[0-9]+", "x").find("a 12 b 34"), "12");
  EXPECT_EQ(TextPattern(R"((?s).*\b([0-9]+))", "x").find("a 12\nb 34 c"), "34");
  EXPECT_EQ(TextPattern(R"(\w+)", "x").find("¿été?"), "été");
  EXPECT_EQ(TextPattern("^b", "x").find("a\nb"), std::nullopt);
  EXPECT_EQ(TextPattern("x*", "x").find("y"), "");
}

TEST(TextPattern, RefusesWhatIsNoPatternAndGivesUpOnEndlessOnes) {
  const std::string said = testing_support::refusal<ConfigError>([] { TextPattern("(", "--exact-match"); });
  EXPECT_EQ(said.find("--exact-match: "), 0U) << said;
  EXPECT_THROW(TextPattern("\xff", "x"), ConfigError);
  EXPECT_THROW(TextPattern("(a+)+$", "x").find(std::string(2000, 'a') + "b"), ConfigError);
}

}  // namespace
}  // namespace lora_train::tokenizer
