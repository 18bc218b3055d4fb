#include <gtest/gtest.h>

#include "lora_train/run/run_costs.h"

namespace lora_train::run {
namespace {

TEST(StartupTimes, PhasesOfOneNameAddUpAndTheirSumIsAll) {
  const auto start = StartupTimes::Clock::now();
  StartupTimes times;
  times.end_phase("data");
  times.end_phase("weights");
  times.end_phase("data");
  times.finish();
  const double most_s = std::chrono::duration<double>(StartupTimes::Clock::now() - start).count();
  times.end_phase("late");
  ASSERT_EQ(times.phases().size(), 2U);
  EXPECT_EQ(times.phases()[0].first, "data");
  EXPECT_EQ(times.phases()[1].first, "weights");
  EXPECT_DOUBLE_EQ(times.total_s(), times.phases()[0].second + times.phases()[1].second);
  EXPECT_LE(times.total_s(), most_s);
  EXPECT_TRUE(times.in_words().ends_with(")") && times.in_words().find(" s (data ") != std::string::npos)
      << times.in_words();
}

}  // namespace
}  // namespace lora_train::run
