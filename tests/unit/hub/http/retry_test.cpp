#include "http/retry.h"

#include <gtest/gtest.h>

namespace lora_train::hub {
namespace {

TEST(Retry, RepeatsWhatMayPass) {
  for (const int status : {408, 429, 500, 502, 503, 504, 529}) EXPECT_TRUE(is_transient(status)) << status;
  for (const int status : {200, 206, 302, 400, 401, 403, 404, 409, 416, 501, 505, 600})
    EXPECT_FALSE(is_transient(status));
}

TEST(Retry, DelaysDoubleUpToHalfAMinuteWithJitter) {
  EXPECT_DOUBLE_EQ(retry_delay(0, 0.5, 0), 0.25);
  EXPECT_DOUBLE_EQ(retry_delay(0, 0.5, 1), 0.5);
  EXPECT_DOUBLE_EQ(retry_delay(3, 0.5, 1), 4);
  EXPECT_DOUBLE_EQ(retry_delay(1000, 0.5, 1), 30);
  EXPECT_DOUBLE_EQ(retry_delay(1000, 0.5, 0), 15);
}

TEST(Retry, RetryAfterIsSecondsOrADate) {
  EXPECT_EQ(parse_retry_after(" 7 ", 0), 7);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 60), 40);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 200), 0);
  for (const char* none : {"", "soon", "-1", "1.5", "Thu, 01 Jan"}) EXPECT_FALSE(parse_retry_after(none, 0)) << none;
}

TEST(Retry, ContentRangeBegins) {
  EXPECT_EQ(content_range_begin("bytes 100-199/1000"), 100U);
  EXPECT_EQ(content_range_begin("bytes 0-0/*"), 0U);
  for (const char* none : {"", "bytes */1000", "items 0-1/2", "bytes x-1/2", "bytes 12"})
    EXPECT_FALSE(content_range_begin(none));
}

}  // namespace
}  // namespace lora_train::hub
