#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "hex.h"
#include "lora_train/export/gguf_file.h"

namespace lora_train::gguf {
namespace {

std::string encoded(const std::vector<float>& values, TensorType type) {
  std::string out;
  EXPECT_TRUE(encode(values.data(), std::ssize(values), type, out));
  EXPECT_EQ(out.size(), encoded_bytes(std::ssize(values), type));
  return hex(out);
}

TEST(Encode, Q8HasTheBitsOfTheGgufPackage) {
  std::vector<float> values = {0,     1,      -1,    0.5F, -0.5F, 127,   -126.5F, 126.5F,
                               63.5F, -63.5F, 0.49F, 2.5F, 3.5F,  -2.5F, -3.5F,   1e-3F};
  for (int i = 0; i < 16; ++i) values.push_back(7.25F * static_cast<float>(i * 37 % 29 - 14));
  EXPECT_EQ(encoded(values, TensorType::kQ8_0), "003c0001ff01ff7f817f40c0000304fdfc009ad40f49b0ea245ec6003aa2dc1650b7");
  EXPECT_EQ(encoded(std::vector<float>(32, 0), TensorType::kQ8_0), std::string(68, '0'));
}

TEST(Encode, RoundsToNearestEven) {
  EXPECT_EQ(encoded({1, 0x1.01p0F, 0x1.03p0F}, TensorType::kBF16), "803f803f823f");
  EXPECT_EQ(encoded({1, 0x1.002p0F, 0x1.006p0F}, TensorType::kF16), "003c003c023c");
  EXPECT_EQ(encoded({1, -2}, TensorType::kF32), "0000803f000000c0");
}

TEST(Encode, ReportsWhatDoesNotFit) {
  const auto fits = [](float value, TensorType type) {
    std::string out;
    const std::vector<float> values(32, value);
    return encode(values.data(), 32, type, out);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0}) {
    EXPECT_TRUE(fits(65504, type));
    EXPECT_FALSE(fits(kInfinity, type)) << row_of(type).name;
    EXPECT_FALSE(fits(std::numeric_limits<float>::quiet_NaN(), type)) << row_of(type).name;
  }
  EXPECT_FALSE(fits(65520, TensorType::kF16));
  EXPECT_TRUE(fits(65520, TensorType::kQ8_0));
  EXPECT_FALSE(fits(1e7F, TensorType::kQ8_0));
}

}  // namespace
}  // namespace lora_train::gguf
