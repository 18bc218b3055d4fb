#include "train/choice_figures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lora_train::train {
namespace {

TEST(ChoiceFigures, AreThoseComputedByHand) {
  ChoiceCounter counter;
  const double logs[] = {std::log(0.6), std::log(0.2)};  // shares 0.75 and 0.25
  const std::int64_t chars[] = {1, 10};                  // by character the second is likelier
  counter.add(logs, chars, 0);
  counter.add(logs, chars, 1);
  counter.add(logs, chars, 1);
  const ChoiceFigures figures = counter.figures();
  EXPECT_EQ(figures.num_rows, 3);
  EXPECT_DOUBLE_EQ(figures.accuracy, 1.0 / 3);
  EXPECT_DOUBLE_EQ(figures.normalized_accuracy, 2.0 / 3);
  EXPECT_NEAR(figures.ece, 0.75 - 1.0 / 3, 1e-12);       // one bin: share 0.75, right once in three
  EXPECT_NEAR(figures.brier, (2 * 0.0625 + 4 * 0.5625) / 3, 1e-12);
}

TEST(ChoiceFigures, OfVerySmallProbabilitiesAreFinite) {
  ChoiceCounter counter;
  const double logs[] = {-5000.0, -5001.0, -9000.0};
  const std::int64_t chars[] = {1, 1, 1};
  counter.add(logs, chars, 0);
  EXPECT_NEAR(counter.figures().ece, 1 - 1 / (1 + std::exp(-1)), 1e-12);
  EXPECT_DOUBLE_EQ(counter.figures().normalized_accuracy, 1);
}

TEST(ChoiceFigures, TakeTheFirstOfEquals) {
  ChoiceCounter counter;
  const double logs[] = {-1, -1};
  const std::int64_t chars[] = {3, 3};
  counter.add(logs, chars, 0);
  EXPECT_DOUBLE_EQ(counter.figures().accuracy, 1);
}

}  // namespace
}  // namespace lora_train::train
