#include "evaluate/questions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::evaluate {
namespace {

TEST(AnswerMatch, NormalizesSpaceAndCommasInNumbers) {
  EXPECT_EQ(normalized_answer("  1,234\n\t apples, 5 pears , "), "1234 apples, 5 pears ,");
  EXPECT_EQ(normalized_answer(" \n"), "");
}

TEST(AnswerMatch, PicksTheAnswerOutOfBothTexts) {
  const auto pick = [](const std::string& regex, const std::string& text) {
    return AnswerMatcher(regex, "--exact-match").pick(text);
  };
  const std::string gsm8k = "#### (-?[0-9.,]+)";
  EXPECT_EQ(pick(gsm8k, "so\n#### 1,234."), pick(gsm8k, "#### 1234"));
  EXPECT_EQ(pick(gsm8k, "#### -7,"), "-7");
  EXPECT_EQ(pick(gsm8k, "#### 0.5"), "0.5");
  EXPECT_EQ(pick(gsm8k, "1234"), std::nullopt);
  EXPECT_EQ(pick("#### ([0-9]+)", "#### 3, no:\n#### 4"), "3") << "the first match counts";
  EXPECT_EQ(pick("(?s).*#### ([0-9]+)", "#### 3, no:\n#### 4"), "4") << "a prefix makes it the last";
  EXPECT_EQ(pick("", "It is 4.\n"), "It is 4.") << "the whole text without a regex";
  EXPECT_NE(pick("", "It is 4"), pick("", "It is 4."));
  EXPECT_THROW(pick("([", ""), ConfigError);
}

TEST(ChoiceFigures, AreThoseComputedByHand) {
  const double logs[] = {std::log(0.6), std::log(0.2)};  // shares 0.75 and 0.25
  const std::int64_t chars[] = {1, 10};                  // by character the second is likelier
  const std::vector<ChoiceOutcome> outcomes = {choice_outcome(logs, chars, 0), choice_outcome(logs, chars, 1),
                                               choice_outcome(logs, chars, 1)};
  const ChoiceFigures figures = choice_figures(outcomes);
  EXPECT_EQ(figures.num_rows, 3);
  EXPECT_DOUBLE_EQ(figures.accuracy, 1.0 / 3);
  EXPECT_DOUBLE_EQ(figures.normalized_accuracy, 2.0 / 3);
  EXPECT_NEAR(figures.ece, 0.75 - 1.0 / 3, 1e-12);  // one bin: share 0.75, right once in three
  EXPECT_NEAR(figures.brier, (2 * 0.0625 + 4 * 0.5625) / 3, 1e-12);
}

TEST(ChoiceFigures, OfVerySmallProbabilitiesAreFinite) {
  const double logs[] = {-5000.0, -5001.0, -9000.0};
  const std::int64_t chars[] = {1, 1, 1};
  const std::vector<ChoiceOutcome> outcomes = {choice_outcome(logs, chars, 0)};
  EXPECT_NEAR(choice_figures(outcomes).ece, 1 - 1 / (1 + std::exp(-1)), 1e-12);
  EXPECT_DOUBLE_EQ(choice_figures(outcomes).normalized_accuracy, 1);
}

TEST(ChoiceFigures, TakeTheFirstOfEquals) {
  const double logs[] = {-1, -1};
  const std::int64_t chars[] = {3, 3};
  EXPECT_EQ(choice_outcome(logs, chars, 1).taken, 0U);
  EXPECT_TRUE(choice_outcome(logs, chars, 0).is_right);
}

}  // namespace
}  // namespace lora_train::evaluate
