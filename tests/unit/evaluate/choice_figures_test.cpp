#include "evaluate/choice_figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lora_train::evaluate {
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
  EXPECT_NEAR(figures.ece, 0.75 - 1.0 / 3, 1e-12);  // one bin: share 0.75, right once in three
  EXPECT_NEAR(figures.brier, (2 * 0.0625 + 4 * 0.5625) / 3, 1e-12);
}

TEST(ChoiceFigures, BinsAreFifteenthsOfTheShare) {
  const auto ece = [](double right, double wrong) {
    ChoiceCounter counter;
    const std::int64_t chars[] = {1, 1};
    counter.add(std::vector<double>{std::log(right), std::log(1 - right)}, chars, 0);
    counter.add(std::vector<double>{std::log(wrong), std::log(1 - wrong)}, chars, 1);
    return counter.figures().ece;
  };
  EXPECT_NEAR(ece(0.601, 0.666), (0.666 - 0.399) / 2, 1e-12) << "both between 9/15 and 10/15: one gap";
  EXPECT_NEAR(ece(0.599, 0.601), (0.401 + 0.601) / 2, 1e-12) << "on both sides of 9/15: two gaps";
  EXPECT_NEAR(ece(0.666, 0.667), (0.334 + 0.667) / 2, 1e-12) << "on both sides of 10/15";
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
}  // namespace lora_train::evaluate
