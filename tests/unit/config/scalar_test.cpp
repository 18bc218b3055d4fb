#include <gtest/gtest.h>

#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

TEST(Scalar, NumbersInAnySpellingAreOne) {
  for (const char* text : {"2e-4", "2.0e-4", "0.0002", "2E-4", "+2e-4", ".0002", "0.2e-3"}) {
    ASSERT_TRUE(parse_number(text).has_value()) << text;
    EXPECT_EQ(*parse_number(text), 2e-4) << text;
  }
}

TEST(Scalar, RefusesWhatIsNoFiniteNumber) {
  for (const char* text :
       {"", "-", "+", "nan", "inf", "-inf", ".inf", "1e999", "0x10", "1 ", " 1", "1,5", "1e", "--1", "1_000"}) {
    EXPECT_FALSE(parse_number(text).has_value()) << text;
    EXPECT_FALSE(parse_integer(text).has_value()) << text;
  }
}

TEST(Scalar, IntegersMayHaveExponentOrZeroFraction) {
  EXPECT_EQ(parse_integer("200"), 200);
  EXPECT_EQ(parse_integer("-3"), -3);
  EXPECT_EQ(parse_integer("1e3"), 1000);
  EXPECT_EQ(parse_integer("200.0"), 200);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  EXPECT_FALSE(parse_integer("9223372036854775808").has_value());
  EXPECT_FALSE(parse_integer("1.5").has_value());
}

TEST(Scalar, BoolWords) {
  for (const char* text : {"true", "True", "on", "ON", "yes"}) EXPECT_EQ(parse_bool(text), true) << text;
  for (const char* text : {"false", "False", "off", "Off", "no"}) EXPECT_EQ(parse_bool(text), false) << text;
  for (const char* text : {"1", "0", "", "maybe", "t"}) EXPECT_FALSE(parse_bool(text).has_value()) << text;
}

TEST(Scalar, Durations) {
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("10m"), 600);
  EXPECT_EQ(parse_duration("2h30m"), 9000);
  EXPECT_EQ(parse_duration("1d"), 86400);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  for (const char* text : {"", "m", "10x", "30m2h", "10m5", "5m5m", "h2"}) EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Scalar, DurationTextReadsBack) {
  EXPECT_EQ(duration_text(600), "10m");
  EXPECT_EQ(duration_text(9000), "2h30m");
  for (const double seconds : {0.5, 1.0, 59.0, 61.0, 3601.0, 86400.0, 1e10}) {
    EXPECT_EQ(parse_duration(duration_text(seconds)), seconds) << duration_text(seconds);
  }
}

}  // namespace
}  // namespace lora_train
