#include "lora_train/storage/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/safetensors_bytes.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

using testing_support::safetensors_bytes;
using testing_support::TemporaryFolder;
using testing_support::u64_le;
using testing_support::write_bytes;

class Safetensors : public ::testing::Test {
 protected:
  SafetensorsFile open(std::string_view bytes) {
    return SafetensorsFile(write_bytes(folder_ / "a.safetensors", bytes));
  }

  /// Expects a FormatError whose text holds `expected`, at `tensor` when one is named.
  void expect_refused(std::string_view bytes, const std::string& expected, const std::string& tensor = "") {
    const auto path = write_bytes(folder_ / "a.safetensors", bytes);
    try {
      SafetensorsFile file(path);
      ADD_FAILURE() << "accepted: " << bytes.substr(0, 200);
    } catch (const FormatError& error) {
      EXPECT_NE(error.message().find(expected), std::string::npos) << error.what();
      for (const char c : error.message()) EXPECT_TRUE(c >= ' ' && c <= '~') << error.message();
      EXPECT_EQ(error.where(), tensor.empty() ? path.string() : path.string() + ": " + tensor);
    }
  }
  void expect_header_refused(std::string_view header, const std::string& expected, const std::string& tensor = "") {
    expect_refused(safetensors_bytes(header, "01234567"), expected, tensor);
  }

  TemporaryFolder folder_;
};

TEST_F(Safetensors, ReadsTensorsAndMetadata) {
  const auto file =
      open(safetensors_bytes(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[1],"data_offsets":[4,8]},)"
                             R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}   )",
                             "01234567"));
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const auto* a = file.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::kBF16);
  EXPECT_EQ(a->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(a->num_elements(), 2);
  EXPECT_EQ(describe(*a), "BF16 [2, 1]");
  EXPECT_EQ(file.bytes(*a), "0123");
  EXPECT_EQ(file.bytes(*file.find("b")), "4567");
  EXPECT_EQ(file.find("c"), nullptr);
  file.release(*a);
  EXPECT_EQ(file.bytes(*a), "0123");
}

TEST_F(Safetensors, AcceptsScalarsEmptyTensorsAndPaddingAroundTheHeader) {
  const auto file =
      open(safetensors_bytes("\t\n {\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
                             "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]}} \n",
                             "01234567"));
  EXPECT_EQ(file.find("s")->num_elements(), 1);
  EXPECT_EQ(file.find("e")->num_elements(), 0);
  EXPECT_EQ(file.bytes(*file.find("e")), "");
  EXPECT_TRUE(open(safetensors_bytes("{}")).tensors().empty());
  EXPECT_TRUE(open(safetensors_bytes(R"({"__metadata__":null})")).metadata().empty());
}

TEST_F(Safetensors, KnowsEveryDTypeOfTheFormat) {
  const std::vector<std::pair<std::string, int>> dtypes = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},   {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},     {"F8_E4M3FNUZ", 8}, {"I16", 16}, {"U16", 16},
      {"F16", 16},    {"BF16", 16},   {"F8_E5M2FNUZ", 8}, {"I32", 32},        {"U32", 32}, {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},        {"U64", 64}};
  ASSERT_EQ(dtypes.size(), 22U);
  for (const auto& [name, bits] : dtypes) {
    const auto bytes = std::to_string(bits);  // eight elements take as many bytes as one has bits
    const auto file =
        open(safetensors_bytes(R"({"t":{"dtype":")" + name + R"(","shape":[8],"data_offsets":[0,)" + bytes + "]}}",
                               std::string(static_cast<std::size_t>(bits), 'x')));
    EXPECT_EQ(dtype_name(file.find("t")->dtype), name);
    EXPECT_EQ(dtype_bits(file.find("t")->dtype), bits);
  }
}

TEST_F(Safetensors, RefusesLengthsOfHeaders) {  // rules 1 to 3
  expect_refused("", "has 0 bytes");
  expect_refused("1234567", "has 7 bytes");
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, ~std::uint64_t{0}}) {
    expect_refused(u64_le(length) + "{}", "header length is " + std::to_string(length));
  }
  expect_refused(u64_le(3) + "{}", "should have 3 bytes but only 2");
  expect_refused(u64_le(100'000'000) + "{}", "only 2 follow");
  expect_refused(u64_le(1), "only 0 follow");
}

TEST_F(Safetensors, RefusesWhatOtherFilesHoldInPlaceOfALength) {
  const std::string header = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string big_endian = u64_le(header.size());
  std::reverse(big_endian.begin(), big_endian.end());
  for (const std::string& bytes :
       {std::string("<!DOCTYPE html><html><title>401 Unauthorized</title></html>"),
        std::string("\x1f\x8b\x08\0\x66\x66\x66\x66", 8) + "gzip", std::string("PK\3\4\x14\0\0\0", 8) + "zip",
        std::string("GGUF\3\0\0\0", 8) + header, std::string(R"({"metadata": {}, "weight_map": {}})"),
        big_endian + header + "01234567", u64_le(~std::uint64_t{7}) + header}) {
    expect_refused(bytes, "so this is not a safetensors file, or a damaged one: download or save the file again");
  }
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull");
  expect_refused(std::string(200, '\0'), "not valid UTF-8 JSON at byte 9");
  expect_refused(u64_le(header.size() - 1) + header + "01234567", "not valid UTF-8 JSON");
  expect_refused(u64_le(header.size() + 1) + header + "01234567", "not valid UTF-8 JSON");
  expect_refused(safetensors_bytes(header, "01234567" + safetensors_bytes(header, "01234567")), "follow the last");
}

TEST_F(Safetensors, RefusesHeadersThatAreNotUtf8OrNotJson) {  // rules 4 and 5
  for (const std::string bad : {"{\"\xFF\":1}", "{\"\xED\xA0\x80\":1}", "", "{", "{}}", "{} x", R"({"a\ud83d":1})",
                                R"({"__metadata__":{},})"}) {
    expect_header_refused(bad, "not valid UTF-8 JSON");
  }
  expect_header_refused("{'a':1}", "not valid UTF-8 JSON at byte 10");
  expect_header_refused(std::string_view("{\0}\0", 4), "NUL byte");  // UTF-16
  expect_header_refused(std::string_view("{}\0", 3), "NUL byte");
  expect_header_refused("\xEF\xBB\xBF{}", "byte order mark");
  expect_header_refused(std::string(100'000, '['), "the header is an array");
  expect_header_refused("1", "the header is a number");
  expect_header_refused("null", "the header is null");
}

TEST_F(Safetensors, RefusesEntriesOfTheWrongTypes) {  // rule 5
  const auto refused = [this](const std::string& fields, const std::string& expected) {
    expect_header_refused("{\"t\":{" + fields + "}}", expected, "t");
  };
  const std::string dtype = R"("dtype":"F64",)", shape = R"("shape":[1],)", offsets = R"("data_offsets":[0,8])";
  expect_header_refused(R"({"t":1})", "\"t\" is a number");
  expect_header_refused(R"({"t":null})", "\"t\" is null");
  refused("", "no \"dtype\"");
  refused(dtype + offsets, "no \"shape\"");
  refused(R"("dtype":"F64","shape":[1])", "no \"data_offsets\"");
  refused(R"("dtype":"F65",)" + shape + offsets, "unknown dtype \"F65\"");
  refused(R"("dtype":"f64",)" + shape + offsets, "unknown dtype");
  refused(R"("dtype":64,)" + shape + offsets, "dtype is a number");
  refused(dtype + R"("shape":8,)" + offsets, "shape is a number");
  refused(dtype + R"("shape":[-1],)" + offsets, "shape holds the negative number -1");
  refused(dtype + R"("shape":[1.0],)" + offsets, "shape holds the number \"1.0\"");
  refused(dtype + R"("shape":["1"],)" + offsets, "shape holds a string");
  refused(dtype + R"("shape":[[1]],)" + offsets, "shape holds an array");
  refused(dtype + R"("shape":[18446744073709551616],)" + offsets, "shape holds the number");
  refused(dtype + shape + R"("data_offsets":[0])", "holds 1 numbers");
  refused(dtype + shape + R"("data_offsets":[0,8,8])", "more than two");
  refused(dtype + shape + R"("data_offsets":"0,8")", "data_offsets is a string");
  refused(dtype + shape + R"("data_offsets":[0,true])", "data_offsets holds a boolean");
  refused(dtype + shape + R"("data_offsets":[-8,0])", "the negative number -8");
  refused(dtype + shape + R"("data_offsets":{"begin":0})", "data_offsets is an object");
}

TEST_F(Safetensors, RefusesMetadataThatIsNotStringToString) {
  expect_header_refused(R"({"__metadata__":{"a":1}})", "__metadata__ maps \"a\" to a number");
  expect_header_refused(R"({"__metadata__":{"a":{"b":"c"}}})", "__metadata__ maps \"a\" to an object");
  expect_header_refused(R"({"__metadata__":{"a":null}})", "__metadata__ maps \"a\" to null");
  expect_header_refused(R"({"__metadata__":["a"]})", "\"__metadata__\" is an array");
}

TEST_F(Safetensors, RefusesRepeatedKeys) {
  const std::string t = R"("t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string u = R"("u":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})";
  expect_header_refused("{" + t + "," + t + "," + u + "}", "appears twice", "t");
  expect_header_refused("{" + t + "," + u + "," + t + "}", "appears twice", "t");
  expect_header_refused(R"({"__metadata__":{"a":"1","a":"2"}})", "the key \"a\" twice");
  expect_header_refused(R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ appears twice");
  expect_header_refused(R"({"t":{"dtype":"F64","dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
                        "\"dtype\" appears twice", "t");
}

TEST_F(Safetensors, SkipsUnknownKeysOfAnEntry) {
  const auto file = open(safetensors_bytes(
      R"({"t":{"x":{"dtype":[1,{"y":null}]},"dtype":"F64","z":1.5,"shape":[1],"w":[[]],"data_offsets":[0,8]}})",
      "01234567"));
  EXPECT_EQ(describe(*file.find("t")), "F64 [1]");
  expect_header_refused(R"({"t":{"x":)" + std::string(100'000, '['), "nested deeper", "t");
}

TEST_F(Safetensors, RefusesOverlapsHolesAndReversedOffsets) {  // rule 6
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  expect_header_refused(two("[0,4]", "[3,7]"), "must begin at 4", "b");
  expect_header_refused(two("[0,4]", "[5,9]"), "must begin at 4", "b");
  expect_header_refused(two("[0,4]", "[0,4]"), "must begin at 4", "b");
  expect_header_refused(two("[1,5]", "[5,9]"), "must begin at 0", "a");
  expect_header_refused(two("[0,4]", "[4,0]"), "data_offsets are [4, 0]", "b");
  expect_header_refused(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "must begin at 0", "t");
  expect_header_refused(two("[0,4]", "[18446744073708551616,18446744073708551620]"), "must begin at 4", "b");
  expect_header_refused(two("[0,4]", "[4,1000000000000000]"), "data_offsets span 999999999999996 bytes", "b");
}

TEST_F(Safetensors, RefusesShapesThatDoNotFitTheirRange) {  // rules 7 to 9
  const auto refused = [this](const std::string& dtype, const std::string& shape, const std::string& expected,
                              const std::string& offsets = "[0,8]") {
    expect_header_refused(
        R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", expected, "t");
  };
  refused("F32", "[4294967296,4294967296]", "does not fit 64 bits");
  refused("F32", "[9223372036854775807,3]", "does not fit 64 bits");
  refused("F32", "[4611686018427387904,4,2]", "does not fit 64 bits");  // wraps to the right size
  refused("F32", "[576460752303423488]", "number of bits");
  refused("F32", "[18446744073709551615]", "larger than any tensor");
  refused("F4", "[15]", "not a whole number of bytes");
  refused("F6_E3M2", "[3,3]", "not a whole number");
  refused("F32", "[3]", "span 8 bytes but F32 [3] takes 12");
  refused("F32", "[1]", "takes 4");
  refused("F32", "[0]", "takes 0");
  refused("F64", "[1]", "span 0 bytes", "[0,0]");
}

TEST_F(Safetensors, RefusesTruncatedAndOverlongFiles) {  // rule 10
  const std::string header = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  expect_refused(safetensors_bytes(header, "0123456"), "the file is truncated");
  expect_refused(safetensors_bytes(header, ""), "only 0 follow");
  expect_refused(safetensors_bytes(header, "01234567    "), "4 bytes follow the last tensor");
  expect_refused(safetensors_bytes("{}", "x"), "1 bytes follow");
  expect_refused(
      safetensors_bytes(R"({"t":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})", "x"),
      "the file is truncated");
}

TEST_F(Safetensors, RefusesManyEntriesOverOneRange) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  }
  EXPECT_THROW(open(safetensors_bytes(header + "}", "01234567")), FormatError);
}

TEST_F(Safetensors, RefusesAFileThatIsNotThereOrIsNone) {
  EXPECT_THROW(SafetensorsFile(folder_ / "none.safetensors"), IoError);
  EXPECT_THROW(SafetensorsFile(folder_.path()), FormatError);
  EXPECT_THROW(SafetensorsFile("/dev/zero"), FormatError);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  ::alarm(20);  // opening the pipe would never end
  EXPECT_THROW(SafetensorsFile(folder_ / "pipe"), FormatError);
  ::alarm(0);
}

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
