#include "lora_train/base/half.h"

#include <gtest/gtest.h>

namespace lora_train {
namespace {

/// Exponent of all ones and a fraction.
bool is_nan(std::uint32_t bits, std::uint32_t infinity) { return (bits & 0x7FFF) > infinity; }

TEST(Half, EveryPatternComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (is_nan(bits, 0x7C00))
      EXPECT_TRUE(std::isnan(from_f16(half)));
    else
      EXPECT_EQ(to_f16(from_f16(half)), half);
    if (is_nan(bits, 0x7F80))
      EXPECT_TRUE(std::isnan(from_bf16(half)));
    else
      EXPECT_EQ(to_bf16(from_bf16(half)), half);
  }
}

TEST(Half, RoundsToNearestAndHalfwayToEven) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {  // up to the second largest of fp16
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const float middle = (from_f16(low) + from_f16(high)) / 2;
    EXPECT_EQ(to_f16(middle), bits % 2 == 0 ? low : high) << bits;
    EXPECT_EQ(to_f16(std::nextafter(middle, 0.0F)), low) << bits;
    EXPECT_EQ(to_f16(-std::nextafter(middle, 1e9F)), high | 0x8000) << bits;
  }
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
}

TEST(Half, KnowsItsLimits) {
  EXPECT_EQ(to_f16(65519.9F), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(to_f16(-1e10F), 0xFC00);
  EXPECT_TRUE(std::isnan(from_f16(to_f16(NAN))));
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(NAN))));
  EXPECT_EQ(from_f16(0x3C00), 1.0F);
  EXPECT_EQ(from_f16(0x0001), 0x1p-24F);
  EXPECT_EQ(from_bf16(0x3F80), 1.0F);
}

}  // namespace
}  // namespace lora_train
