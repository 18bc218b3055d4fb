#include "lora_train/base/text.h"

#include <gtest/gtest.h>

namespace lora_train {
namespace {

TEST(Text, NearestNameFindsASlipAndNotAStranger) {
  const std::vector<std::string> names{"weight_decay", "warmup_ratio", "seed"};
  EXPECT_EQ(nearest_name("weigth_decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("zzzzzzzz", names), "");
}

TEST(Text, NearestNamesAreAtMostThreeThatAreAboutAsNear) {
  const std::vector<std::string> names{"eval_data", "val_data", "train_data", "eval_dates", "eval_dat", "seed"};
  EXPECT_EQ(nearest_names("eval_data", names), (std::vector<std::string>{"eval_data", "val_data", "eval_dat"}));
  EXPECT_EQ(did_you_mean({"a", "b", "a", "c"}), " Did you mean \"a\", \"b\" or \"c\"?");
  EXPECT_EQ(did_you_mean({"a"}), " Did you mean \"a\"?");
  EXPECT_EQ(did_you_mean({}), "");
}

TEST(Text, TakesBlanksAway) {
  EXPECT_EQ(trimmed(" \ta b\r\n"), "a b");
  EXPECT_EQ(trimmed(" \n") + trimmed(""), "");
  EXPECT_TRUE(is_blank(" \t\r\n") && is_blank(""));
  EXPECT_FALSE(is_blank(" a "));
}

TEST(Text, FormatsNumbersForPeople) {
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-999), "-999");
  EXPECT_EQ(count_of(1, "row"), "1 row");
  EXPECT_EQ(count_of(1234, "row"), "1,234 rows");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_duration(3723), "1h 02m 03s");
  EXPECT_EQ(format_duration(59.6), "1m 00s");
}

TEST(Text, KnowsTheDaysThereAre) {
  for (const std::string day : {"2024-02-29", "1969-12-31", "2026-12-01"}) {
    ASSERT_TRUE(noon_of(day)) << day;
    EXPECT_EQ(local_day(*noon_of(day)), day);
    EXPECT_EQ(local_day(*noon_of(day) + 11 * 3600), day);
  }
  for (const std::string text : {"2025-02-29", "2024-13-01", "2024-2-9", "2024-02-09 ", "24-02-09", "auto", ""})
    EXPECT_FALSE(noon_of(text)) << text;
}

}  // namespace
}  // namespace lora_train
