#include "lora_train/base/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>

#include "lora_train/base/error.h"

namespace lora_train {
namespace {

TEST(StopRequests, RecordsASignalByNameForTheLengthOfTheObject) {
  for (const auto& [number, name] : {std::pair{SIGUSR1, "SIGUSR1"}, {SIGTERM, "SIGTERM"}}) {
    EXPECT_EQ(stop_reason(), "");
    const StopRequests stop;
    EXPECT_EQ(stop_reason(), "") << "forgotten with the earlier object";
    EXPECT_NO_THROW(throw_if_stop_requested());
    std::raise(number);
    EXPECT_EQ(stop_reason(), name);
    EXPECT_THROW(throw_if_stop_requested(), StopError);
  }
}

TEST(StopRequests, ASignalThatIsTakenBackIsNoFirstOne) {
  const StopRequests stop;
  for (int i = 0; i < 3; ++i) {
    std::raise(SIGINT);
    EXPECT_EQ(requested_stop(), "SIGINT");
    forget_signal();
    EXPECT_EQ(requested_stop(), "");
    EXPECT_NO_THROW(throw_if_stop_requested());
  }
}

TEST(StopRequestsDeathTest, ASecondSignalEndsAtOnce) {
  EXPECT_EXIT(
      {
        const StopRequests stop;
        std::raise(SIGTERM);
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(StopRequestsDeathTest, TheFirstSignalIsAnsweredOnce) {
  EXPECT_EXIT(
      {
        const StopRequests stop(/*has_launcher=*/true, "stopping; again to quit");
        std::raise(SIGINT);
        std::raise(SIGINT);
        std::_Exit(7);
      },
      ::testing::ExitedWithCode(7), "^stopping; again to quit\n$");
}

TEST(StopRequests, SignalsOfOneStopAreNoSecondOneUnderALauncher) {
  const StopRequests stop(/*has_launcher=*/true);
  std::raise(SIGINT);
  std::raise(SIGTERM);
  std::raise(SIGINT);
  EXPECT_EQ(stop_reason(), "SIGINT");
}

TEST(StopRequests, ADeferredRequestWaitsForTheInterruption) {
  {
    const StopRequests stop;
    defer_stops();
    std::raise(SIGTERM);
    EXPECT_EQ(requested_stop(), "SIGTERM");
    EXPECT_EQ(stop_reason(), "");
    EXPECT_NO_THROW(throw_if_stop_requested());
    interrupt(std::make_exception_ptr(StopError("SIGUSR1", "another rank was asked to stop")));
    EXPECT_EQ(stop_reason(), "SIGUSR1");
    EXPECT_THROW(throw_if_stop_requested(), StopError);
    interrupt(std::make_exception_ptr(DeviceError("rank 1", "has ended")));
    EXPECT_EQ(stop_reason(), "");
    EXPECT_THROW(throw_if_stop_requested(), DeviceError);
  }
  const StopRequests next;
  EXPECT_NO_THROW(throw_if_stop_requested());
}

TEST(StopRequests, ASighupThatNohupIgnoresStaysIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopRequests stop;
    std::raise(SIGHUP);
    EXPECT_EQ(stop_reason(), "");
    std::raise(SIGTERM);
    EXPECT_EQ(stop_reason(), "SIGTERM");
  }
  std::signal(SIGHUP, SIG_DFL);
  {
    const StopRequests stop;
    std::raise(SIGHUP);
    EXPECT_EQ(stop_reason(), "SIGHUP");
  }
  std::signal(SIGHUP, before);
}

TEST(StopRequests, MaxTimeCountsFromTheStart) {
  {
    const StopRequests stop;
    set_max_time(1000);
    EXPECT_EQ(stop_reason(), "");
    set_max_time(0);
    EXPECT_EQ(stop_reason(), "max_time");
  }
  EXPECT_EQ(stop_reason(), "");
}

}  // namespace
}  // namespace lora_train
