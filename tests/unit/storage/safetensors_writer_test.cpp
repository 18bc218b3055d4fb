#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/safetensors.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

using testing_support::TemporaryFolder;
using testing_support::u64_le;

TEST(SafetensorsWriter, WritesTheBytesOfTheReferenceWriter) {
  // Made with the Python package: save({"b": int8 [1,2], "a": float32 [1.0], "c": float32 [2.0]}, {"format": "pt"}).
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"b":{"dtype":"I8","shape":[2],"data_offsets":[8,10]}})";
  const std::string one("\0\0\x80\x3f", 4), two("\0\0\0\x40", 4);
  std::string padded = header;
  while (padded.size() % 8 != 0) padded += ' ';

  const TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {{"b", DType::kI8, {2}, "\1\2", nullptr},
                                               {"c", DType::kF32, {1}, two, nullptr},
                                               {"a", DType::kF32, {1}, one, nullptr}});
  EXPECT_EQ(read_file(folder / "a.safetensors"), u64_le(padded.size()) + padded + one + two + "\1\2");
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  std::string buffer;
  std::vector<TensorToWrite> tensors;
  for (int i = 0; i < 50; ++i) {
    TensorToWrite tensor;
    tensor.name = "layer." + std::to_string(i) + ".w\"\\\xC3\xA9";
    tensor.dtype = i % 3 == 0 ? DType::kF32 : i % 3 == 1 ? DType::kBF16 : DType::kU8;
    tensor.shape = {i % 4, 3};
    tensor.produce = [&buffer, i, tensor] {
      buffer.assign(tensor_bytes(tensor.dtype, tensor.shape), static_cast<char>('A' + i));
      return std::string_view(buffer);
    };
    tensors.push_back(tensor);
  }
  write_safetensors(folder / "a.safetensors", tensors, {});
  const SafetensorsFile file(folder / "a.safetensors");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  EXPECT_TRUE(file.metadata().empty());
  for (int i = 0; i < 50; ++i) {
    const auto& tensor = tensors[static_cast<std::size_t>(i)];
    const auto* entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(file.bytes(*entry), std::string(tensor_bytes(tensor.dtype, tensor.shape), static_cast<char>('A' + i)));
  }
}

TEST(SafetensorsWriter, LeavesNothingBehindWhenATensorDoesNotFit) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_safetensors(folder / "a.safetensors", {{"a", DType::kF32, {2}, "1234", nullptr}}), ShapeError);
  EXPECT_THROW(write_safetensors(folder / "a.safetensors",
                                 {{"a", DType::kU8, {1}, "1", nullptr}, {"a", DType::kU8, {1}, "1", nullptr}}),
               ShapeError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lora_train::storage
