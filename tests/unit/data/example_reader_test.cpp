#include "data/read/example_reader.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

class ExampleReaderTest : public testing::Test {
 protected:
  // "line" of a good example, "line:byte message" of a bad one, or "! file:line:byte" when reading ends in an error.
  std::vector<std::string> read(std::string_view bytes, const char* name = "rows.jsonl") {
    const auto file = folder_ / name;
    write_file_atomic(file, bytes);
    std::vector<std::string> out;
    messages_.clear();
    values_.clear();
    try {
      const auto reader = ExampleReader::open(file);
      while (auto block = reader->next()) {
        for (const RawExample& example : parse_examples(std::move(*block))) {
          out.push_back(example.is_bad ? example.where.substr(file.string().size() + 1) : std::to_string(example.line));
          messages_ += example.message;
          values_.push_back(example.value);
        }
      }
    } catch (const DataError& error) {
      out.push_back("!" + error.where().substr(file.string().size()));
      messages_ += error.message();
    }
    return out;
  }
  /// That these are the places, and that the messages have this part in them.
  void expect(std::string_view bytes, const std::vector<std::string>& places, const char* message = "",
              const char* name = "rows.jsonl") {
    EXPECT_EQ(read(bytes, name), places);
    EXPECT_SAYS(messages_, message);
  }

  testing_support::TemporaryFolder folder_;
  std::string messages_;
  std::vector<Json> values_;
};

using Places = std::vector<std::string>;

TEST_F(ExampleReaderTest, SkipsBlankLinesAndTakesCrLfAndAByteOrderMarkOnTheFirstLine) {
  EXPECT_EQ(read("{\"a\":1}\r\n\r\n  \n{\"a\":2}\n\n{\"a\":3}"), (Places{"1", "4", "6"}));
  EXPECT_EQ(read("\xEF\xBB\xBF{\"a\":1}\n{}\n"), (Places{"1", "2"}));
  expect("{\"a\":1}\n\xEF\xBB\xBF{}\n", {"1", "2:1"}, "byte order mark");
  EXPECT_EQ(read("\xEF\xBB\xBF\xEF\xBB\xBF{}\n"), (Places{"1:4"}));
  EXPECT_EQ(read("\xEF\xBB\xBF{\"a\":x}\n"), (Places{"1:9"}));
}

TEST_F(ExampleReaderTest, GoesOnAfterABadLineAndExplainsIt) {
  EXPECT_EQ(read("{\"a\":1}\n{\"a\":NaN}\n{\"a\":2}\n"), (Places{"1", "2:6", "3"}));
  expect("{\"a\":1}\n{\"a\":\"x", {"1", "2:8"}, "truncated");
  expect("{\"a\":\"x\r\n{}\r\n", {"1:8", "2"}, "every line holds one whole object");
  EXPECT_EQ(read("{\n\"a\":1\n}\n").front(), "1:2");
  EXPECT_SAYS(messages_, "one JSON array");
}

TEST_F(ExampleReaderTest, PlacesAreExactInAnArray) {
  EXPECT_EQ(read("\n[\n  {\"a\":1},\n  {\"a\":2}, {\"a\":\n3}\n]\n"), (Places{"3", "4", "4"}));
  EXPECT_EQ(read("[\n{\"a\":1},\n {\"a\":1,\"a\":2}, [2],\n{\"b\":[1]}]"), (Places{"2", "3:11", "3:17", "4"}));
  EXPECT_EQ(values_[0], (Json{{"a", 1}}));
  EXPECT_EQ(values_[3].dump(), "{\"b\":[1]}");
  EXPECT_EQ(read("[\n{\"a\":1},\n  nope]"), (Places{"2", "!:3:4"}));
  EXPECT_EQ(read("[{\"a\":1},"), (Places{"1", "!:1:10"}));
  expect("[{\"a\":1}\n{\"a\":2}]", {"1", "!:2:1"}, "one JSON array");
  expect("[{\"a\":NaN}]", {"!:1:7"}, "NaN and Infinity");
  expect("[{\"a\":1}, 3]", {"1", "1:12"}, "expected an object");
  EXPECT_EQ(read("[{\"a\":1}]\n{}"), (Places{"1", "!:2:1"}));
}

TEST_F(ExampleReaderTest, RefusesFilesOfAnotherKindAndWithoutExamples) {
  expect("\xFF\xFE{\0", {"!:1:1"}, "UTF-16");
  expect("PAR1abc", {"!:1:1"}, "Parquet");
  expect("", {"!"}, "no example");
  EXPECT_EQ(read("\xEF\xBB\xBF \r\n\n"), (Places{"!"}));
  EXPECT_EQ(read("[]", "rows.json"), (Places{"!"}));
  EXPECT_THROW(ExampleReader::open(folder_ / "none"), IoError);
}

TEST_F(ExampleReaderTest, LinesCutAnywhereByTheBlocksAreWhole) {
  // Lines of growing length over several blocks: every cut falls somewhere else.
  std::string bytes;
  Places expected;
  for (std::size_t i = 0; bytes.size() < (5U << 20); ++i) {
    bytes += "{\"a\":\"" + std::string(i * 37 % 5000, 'x') + "\"}\n";
    expected.push_back(std::to_string(i + 1));
  }
  EXPECT_EQ(read(bytes), expected);
  EXPECT_TRUE(messages_.empty()) << messages_.substr(0, 200);
}

TEST_F(ExampleReaderTest, TextGivesOneExampleALine) {
  EXPECT_EQ(read("one\r\n\n  two \nthr\xC3\xA9"
                 "e",
                 "rows.txt"),
            (Places{"1", "3", "4"}));
  EXPECT_EQ(values_[0], (Json{{"text", "one"}}));
  EXPECT_EQ(values_[1], (Json{{"text", "  two "}}));
  expect("[1]\nab\xFF\n", {"1", "2:3"}, "UTF-8", "rows.txt");
}

TEST_F(ExampleReaderTest, CsvGivesColumnsAsStrings) {
  EXPECT_EQ(read("a,b\r\n1,\"x \"\"y\"\", z\"\r\n\r\n\"two\nlines\",\n", "rows.csv"), (Places{"2", "4"}));
  EXPECT_EQ(values_[0], (Json{{"a", "1"}, {"b", "x \"y\", z"}}));
  EXPECT_EQ(values_[1], (Json{{"a", "two\nlines"}, {"b", ""}}));
  EXPECT_EQ(read("a\tb\n1,2\t3", "rows.tsv"), (Places{"2"}));
  EXPECT_EQ(values_[0], (Json{{"a", "1,2"}, {"b", "3"}}));
}

TEST_F(ExampleReaderTest, CsvNamesRecordsThatDoNotFitTheHeader) {
  expect("a,b\n1\n1,2,3\n4,5\n6,\xFF\n", {"2:1", "3:1", "4", "5:1"}, "1 fields, the header 2", "rows.csv");
  EXPECT_SAYS(messages_, "3 fields");
  EXPECT_SAYS(messages_, "\"b\" is not valid UTF-8");
  expect("a,a\n1,2\n", {"!:1:1"}, "twice", "rows.csv");
  expect("a,b\n1,2\n3,\"x\ny\n", {"!:3:3"}, "never closed", "rows.csv");
  EXPECT_EQ(read("a,b\n", "rows.csv"), (Places{"!"}));
}

// "{}\n" twice, by gzip -n and zstd.
constexpr std::string_view kGzip("\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\xe5\xaa\xae\xe5\x02\0\xaf\xf1\x38\x9c\x06\0\0\0",
                                 26);

TEST_F(ExampleReaderTest, UnpacksGzip) {
  EXPECT_EQ(read(kGzip, "rows.jsonl.gz"), (Places{"1", "2"}));
  EXPECT_EQ(read(std::string(kGzip) + std::string(kGzip)), (Places{"1", "2", "3", "4"}));  // two members
  for (std::size_t size = 4; size < kGzip.size(); ++size) {
    read(kGzip.substr(0, size));
    EXPECT_SAYS(messages_, "gzip data ends early") << size;
  }
  constexpr std::string_view kBadRow(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\xae\xe5"
      "\xaa\x8e\xe5\x02\x00\x0d\xd5\xbc\x09\x06\x00\x00\x00",
      26);  // "{}" and "{]"
  EXPECT_EQ(read(kBadRow, "rows.jsonl.gz"), (Places{"1", "2:2"}));
  std::string wrong(kGzip);
  wrong[12] ^= 0x10;
  read(wrong);
  EXPECT_SAYS(messages_, "gzip data is corrupt");
}

// "{}\n" twice, by zstd --no-check.
constexpr std::string_view kZstd("\x28\xb5\x2f\xfd\0\x58\x31\0\0{}\n{}\n", 15);

TEST_F(ExampleReaderTest, UnpacksZstd) {
  EXPECT_EQ(read(kZstd, "rows.jsonl.zst"), (Places{"1", "2"}));
  EXPECT_EQ(read(kZstd, "rows.txt.zst"), (Places{"1", "2"}));
  EXPECT_EQ(values_[0], (Json{{"text", "{}"}})) << "the name without .zst tells the kind";
  EXPECT_EQ(read(std::string(kZstd) + std::string(kZstd)), (Places{"1", "2", "3", "4"}));  // two frames
  for (std::size_t size = 5; size < kZstd.size(); ++size) {
    read(kZstd.substr(0, size));
    EXPECT_SAYS(messages_, "zstd data") << size;
  }
}

TEST_F(ExampleReaderTest, ALineOfSeveralBlocksKeepsItsNeighbours) {
  const std::string line = "{\"a\":\"" + std::string(5 << 19, 'x') + "\"}\n";
  EXPECT_EQ(read("{}\n" + line + "{}\n" + line + line + "{}"), (Places{"1", "2", "3", "4", "5", "6"}));
  EXPECT_EQ(values_[4]["a"].get<std::string>().size(), 5U << 19);
}

TEST_F(ExampleReaderTest, LinesOver64MiBAreSkippedWithoutHoldingThem) {
  const std::string line = "{\"a\":\"" + std::string(66 << 20, 'x') + "\"}";
  EXPECT_EQ(read("{}\n" + line + "\n{}\n" + line),
            (Places{"1", "2:67108865", "3", "4:67108865"}));  // the last one has no end
  EXPECT_SAYS(messages_, "64 MiB");
}

}  // namespace
}  // namespace lora_train::data
