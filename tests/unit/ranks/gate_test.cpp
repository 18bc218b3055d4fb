#include <gtest/gtest.h>

#include <future>

#include "control.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::ranks {
namespace {

using std::chrono::milliseconds;

class GateTest : public ::testing::Test {
 protected:
  GateTest() { defer_stops(); }
  StopRequests requests_;
  Gate gate_;
};

TEST_F(GateTest, StopsAfterTheLastCollectiveThatAnyRankHasEntered) {
  gate_.pass();
  EXPECT_EQ(gate_.close().num_passed, 1);
  gate_.stop_after(3, "SIGTERM");
  gate_.pass();
  EXPECT_EQ(stop_reason(), "");  // a third is to come
  EXPECT_NO_THROW(throw_if_stop_requested());
  gate_.pass();
  EXPECT_EQ(stop_reason(), "SIGTERM");
  EXPECT_THROW(throw_if_stop_requested(), StopError);
  EXPECT_THROW(gate_.pass(), StopError);
  gate_.open();
  EXPECT_NO_THROW(gate_.pass());
}

TEST_F(GateTest, StopsAtOnceWhereNoRankIsFurther) {
  gate_.pass();
  EXPECT_FALSE(gate_.close().in_steps);
  gate_.stop_after(1, "max_time");
  EXPECT_EQ(stop_reason(), "max_time");
  gate_.begin_steps();
  EXPECT_TRUE(gate_.close().in_steps);
}

TEST_F(GateTest, NothingPassesAClosedGateUntilTheRanksHaveAgreed) {
  gate_.close();
  auto passing = std::async(std::launch::async, [&] { gate_.pass(); });
  EXPECT_EQ(passing.wait_for(milliseconds(50)), std::future_status::timeout);
  gate_.stop_after(1, "SIGTERM");
  EXPECT_NO_THROW(passing.get());
  EXPECT_EQ(gate_.close().num_passed, 1);
}

TEST_F(GateTest, AFailureEndsWhatWaitsAndTakesThePlaceOfAStop) {
  gate_.close();
  gate_.stop_after(0, "SIGTERM");
  gate_.close();
  auto passing = std::async(std::launch::async, [&] { gate_.pass(); });
  gate_.fail(std::make_exception_ptr(DeviceError("rank 1", "lost")));
  EXPECT_THROW(passing.get(), DeviceError);
  EXPECT_THROW(throw_if_stop_requested(), DeviceError);
  EXPECT_EQ(stop_reason(), "");
  gate_.fail(std::make_exception_ptr(IoError("rank 2", "too late")));
  EXPECT_THROW(gate_.pass(), DeviceError);
  EXPECT_THROW(gate_.rethrow_failure(milliseconds(0)), DeviceError);
  interrupt(std::make_exception_ptr(StopError("SIGINT", "too late")));
  EXPECT_THROW(throw_if_stop_requested(), DeviceError);
}

}  // namespace
}  // namespace lora_train::ranks
