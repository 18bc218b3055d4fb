#include <gtest/gtest.h>

#include "lora_train/run/run_costs.h"

namespace lora_train::run {
namespace {

TEST(StartupTimes, PhasesOfOneNameAddUp) {
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
  EXPECT_LE(times.phases()[0].second + times.phases()[1].second, most_s);
}

}  // namespace
}  // namespace lora_train::run
