#include "train/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lora_train::train {
namespace {

TEST(StopRequests, RecordsASignalByName) {
  const StopRequests stop(std::nullopt);
  EXPECT_EQ(stop.reason(), "");
  std::raise(SIGUSR1);
  EXPECT_EQ(stop.reason(), "SIGUSR1");
}

TEST(StopRequests, ForgetsTheSignalsOfAnEarlierObject) {
  const StopRequests stop(std::nullopt);
  EXPECT_EQ(stop.reason(), "");
}

TEST(StopRequestsDeathTest, ASecondSignalEndsAtOnce) {
  EXPECT_EXIT(
      {
        const StopRequests stop(std::nullopt);
        std::raise(SIGTERM);
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(StopRequests, MaxTimeCountsFromTheStart) {
  EXPECT_EQ(StopRequests(0.0).reason(), "max_time");
  EXPECT_EQ(StopRequests(1000.0).reason(), "");
}

}  // namespace
}  // namespace lora_train::train
