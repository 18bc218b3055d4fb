#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "lora_train/base/log.h"

namespace lora_train {
namespace {

using std::chrono::hours;

TEST(LinePace, ShortWorkSaysNothing) { EXPECT_FALSE(LinePace().is_due()); }

TEST(LinePace, AfterALineTheNextOneIsNotDueAtOnce) {
  LinePace pace(hours(0), hours(1));
  EXPECT_TRUE(pace.is_due());
  EXPECT_FALSE(pace.is_due());
  LinePace always(hours(0), hours(0));
  EXPECT_TRUE(always.is_due() && always.is_due());
}

TEST(LinePace, OneOfSeveralThreadsLogs) {
  LinePace pace(hours(0), hours(1));
  std::vector<char> was_due(8);
  {
    std::vector<std::jthread> threads;
    for (char& is_due : was_due) threads.emplace_back([&] { is_due = pace.is_due() ? 1 : 0; });
  }
  EXPECT_EQ(std::count(was_due.begin(), was_due.end(), 1), 1);
}

}  // namespace
}  // namespace lora_train
