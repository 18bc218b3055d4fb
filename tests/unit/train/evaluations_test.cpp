#include "train/evaluations.h"

#include <gtest/gtest.h>

namespace lora_train::train {
namespace {

TEST(Evaluations, AreWarnedOfAboveATenthOfTheTime) {
  EXPECT_EQ(evaluation_cost_in_words(10, 91), "");
  EXPECT_EQ(
      evaluation_cost_in_words(30, 90),
      "evaluations take 25% of the time, 30s beside 1m 30s of steps. Raise eval_steps or a task's every, or lower "
      "eval_max_samples, or a task's max_samples or max_new_tokens");
  EXPECT_EQ(evaluation_cost_in_words(0.9, 0.1), "") << "less than a second";
}

}  // namespace
}  // namespace lora_train::train
