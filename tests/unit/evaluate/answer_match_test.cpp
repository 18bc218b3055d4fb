#include <gtest/gtest.h>

#include "evaluate/questions.h"
#include "lora_train/base/error.h"

namespace lora_train::evaluate {
namespace {

TEST(AnswerMatch, NormalizesSpaceAndCommasInNumbers) {
  EXPECT_EQ(normalized_answer("  1,234\n\t apples, 5 pears , "), "1234 apples, 5 pears ,");
  EXPECT_EQ(normalized_answer(" \n"), "");
}

TEST(AnswerMatch, PicksTheAnswerOutOfBothTexts) {
  const AnswerMatcher gsm8k("#### (-?[0-9.,]+)", "--exact-match");
  EXPECT_EQ(gsm8k.pick("so\n#### 1,234."), gsm8k.pick("#### 1234"));
  EXPECT_EQ(gsm8k.pick("#### -7,"), "-7");
  EXPECT_EQ(gsm8k.pick("#### 0.5"), "0.5");
  EXPECT_EQ(gsm8k.pick("1234"), std::nullopt);
}

TEST(AnswerMatch, TheFirstMatchCountsAndAPrefixMakesItTheLast) {
  EXPECT_EQ(AnswerMatcher("#### ([0-9]+)", "--exact-match").pick("#### 3, no:\n#### 4"), "3");
  EXPECT_EQ(AnswerMatcher("(?s).*#### ([0-9]+)", "--exact-match").pick("#### 3, no:\n#### 4"), "4");
}

TEST(AnswerMatch, ComparesWholeTextsWithoutARegex) {
  const AnswerMatcher whole("", "--exact-match");
  EXPECT_EQ(whole.pick("It is 4.\n"), "It is 4.");
  EXPECT_NE(whole.pick("It is 4"), whole.pick("It is 4."));
}

TEST(AnswerMatch, RefusesWhatIsNoRegex) { EXPECT_THROW(AnswerMatcher("([", "--exact-match"), ConfigError); }

}  // namespace
}  // namespace lora_train::evaluate
