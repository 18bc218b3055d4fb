#include "lora_train/export/gguf_file.h"

#include <gtest/gtest.h>

#include <limits>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::gguf {
namespace {

using testing_support::TemporaryFolder;

/// Bytes as hexadecimal digits.
std::string hex(std::string_view bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

// GGUFWriter of the gguf package 0.19: general.architecture "llama", then the values and tensors of the test.
constexpr const char* kFileOfThePackage =
    "474755460300000002000000000000000700000000000000140000000000000067656e6572616c2e61726368697465637475"
    "72650800000005000000000000006c6c616d610c0000000000000067656e6572616c2e6e616d650800000004000000000000"
    "0074696e790300000000000000612e7504000000070000000300000000000000612e66060000000000003f03000000000000"
    "00612e6207000000010300000000000000612e73090000000800000002000000000000000100000000000000780200000000"
    "000000797a0300000000000000612e690900000005000000020000000000000001000000feffffff0800000000000000742e"
    "77656967687402000000030000000000000002000000000000000000000000000000000000000800000000000000752e7765"
    "6967687401000000020000000000000000000000200000000000000000000000000000000000000000000000000000000000"
    "0000000000000000803f0000004000004040000080400000a04000000000000000000000803f000000400000000000000000"
    "00000000000000000000000000000000";

Tensor float_tensor(std::string name, std::vector<std::int64_t> shape, std::vector<float> values) {
  return {std::move(name), TensorType::kF32, std::move(shape), [values](const Tensor::Write& write) {
            for (const float& value : values) write({reinterpret_cast<const char*>(&value), sizeof(value)});
          }};
}

TEST(GgufFile, HasTheBytesOfTheGgufPackage) {
  const TemporaryFolder folder;
  const std::vector<KeyValue> metadata = {{"general.architecture", std::string("llama")},
                                          {"general.name", std::string("tiny")},
                                          {"a.u", std::uint32_t{7}},
                                          {"a.f", 0.5F},
                                          {"a.b", true},
                                          {"a.s", std::vector<std::string>{"x", "yz"}},
                                          {"a.i", std::vector<std::int32_t>{1, -2}}};
  const std::uint64_t size =
      write_gguf(folder / "x.gguf", metadata,
                 {float_tensor("t.weight", {2, 3}, {0, 1, 2, 3, 4, 5}), float_tensor("u.weight", {2}, {1, 2})});
  EXPECT_EQ(hex(read_file(folder / "x.gguf")), kFileOfThePackage);
  EXPECT_EQ(size, read_file(folder / "x.gguf").size());
}

TEST(GgufFile, LeavesNothingWhereATensorFails) {
  const TemporaryFolder folder;
  Tensor bad = float_tensor("t.weight", {2}, {1, 2});
  bad.produce = [](const Tensor::Write&) { throw NumericError("t.weight", "no"); };
  EXPECT_THROW(write_gguf(folder / "x.gguf", {}, {bad}), NumericError);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "."));
}

TEST(GgufFile, RefusesTensorsOfOtherSizesAndNames) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_gguf(folder / "x.gguf", {}, {float_tensor("t", {3}, {1, 2})}), ShapeError);
  EXPECT_THROW(write_gguf(folder / "x.gguf", {}, {float_tensor(std::string(64, 't'), {1}, {1})}), ShapeError);
  EXPECT_THROW(write_gguf(folder / "x.gguf", {}, {float_tensor("t", {1}, {1}), float_tensor("t", {1}, {1})}),
               ShapeError);
}

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
