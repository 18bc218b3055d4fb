#include "data/read/example_reader.h"

#include <gtest/gtest.h>

#include "data/read/json_examples.h"
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
  EXPECT_EQ(read("{\"a\":1}\n{\"a\":nan}\n{\"a\":2}\n"), (Places{"1", "2:7", "3"}));
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
  EXPECT_EQ(read("[{\"a\":NaN},\n{\"b\":[-Infinity, \"NaN\"], \"c\": \"\\\"NaN\"},\n {\"a\":NaN,}]"),
            (Places{"1", "2", "!:3:11"}));
  EXPECT_EQ(values_[0], Json({{"a", nullptr}}));
  EXPECT_EQ(values_[1]["b"][1].dump() + values_[1]["c"].dump(), "\"NaN\"\"\\\"NaN\"");
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
  EXPECT_EQ(read(",a,,\n0,x,,\n", "rows.csv"), (Places{"2"}));  // pandas' index, and Excel's empty columns
  EXPECT_EQ(values_[0], (Json{{"Unnamed: 0", "0"}, {"a", "x"}, {"Unnamed: 2", ""}, {"Unnamed: 3", ""}}));
}

TEST_F(ExampleReaderTest, CsvNamesAnotherSeparator) {
  expect("\xEF\xBB\xBFinstruction;output\n1;2\n", {"!:1:1"}, "separated by semicolons, expected commas", "rows.csv");
  EXPECT_SAYS(messages_, "rows.csv', sep=';').to_csv(");
  expect("sep=;\na;b\n", {"!:1:1"}, "semicolons", "rows.tsv");
  EXPECT_EQ(read("\"a;b\",c\n1,2\n", "rows.csv"), (Places{"2"}));
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

std::string nested(int levels) {
  const auto depth = static_cast<std::size_t>(levels - 1);
  return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
}

TEST(JsonExamples, KeepsValuesAndTheOrderOfKeys) {
  const JsonExample example =
      parse_json_example(R"( {"b": [1, -2.5, null], "a": {"x": true, "y": "\u00e9\u20ac\ud83d\ude00"}} )");
  ASSERT_FALSE(example.problem) << example.problem->message;
  EXPECT_EQ(example.value.dump(),
            "{\"b\":[1,-2.5,null],\"a\":{\"x\":true,\"y\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"}}");
  EXPECT_FALSE(parse_json_example(nested(64)).problem) << "levels";
  EXPECT_FALSE(parse_json_example(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})").problem) << "keys of other objects";
}

/// What is refused for one reason, and the byte where.
struct BadTexts {
  const char* message;  ///< a part of it
  std::vector<std::pair<std::string, std::size_t>> texts;
};

TEST(JsonExamples, BadTextIsRefusedAtTheByte) {
  const std::vector<BadTexts> cases = {
      {"invalid JSON", {{"", 0}}},
      {"unexpected end of input", {{"{\"a\": 1", 7}}},
      {"missing closing quote", {{"{\"a\": \"xy", 9}, {"{\"a", 3}}},
      {"invalid number", {{"{\"a\": -", 7}}},
      {"invalid literal", {{"{\"a\": tru", 9}, {"{a: 1}", 1}, {"{'a': 1}", 1}, {"{\"a\": 1} // x", 9}}},
      {"expected ':'", {{"{\"a\" 1}", 5}}},
      {"expected '}'", {{"{\"a\": 1 \"b\": 2}", 10}, {"{\"a\": 01}", 7}}},
      {"control character", {{"{\"a\": \"x\ty\"}", 8}, {"{\"a\": \"x\x01\"}", 8}, {"{\"a\": \"x\ny\"}", 8}}},
      {"expected string literal", {{"{\"a\": 1,}", 8}}},
      {"expected end of input", {{"{\"a\": 1} {}", 9}}},
      {"invalid literal", {{"{\"a\": nan}", 7}, {"{\"a\": NaNs}", 9}, {"{\"a\": Inf}", 6}, {"{\"a\": [NaN, x]}", 12}}},
      {"out of range", {{"{\"a\": 1e999}", 10}}},
      {"forbidden character", {{"{\"a\": \"\\x\"}", 8}}},
      {"4 hex digits", {{"{\"a\": \"\\u12\"}", 11}}},
      {"surrogate", {{"{\"a\": \"\\ud800x\"}", 13}, {"{\"a\": \"\\udc00\"}", 12}}},
      {"ill-formed UTF-8",
       {{"{\"a\": \"\x80\"}", 7},
        {"{\"a\": \"\xE2\x82\"}", 9},
        {"{\"a\": \"\xC0\xAF\"}", 7},
        {"{\"a\": \"\xED\xA0\x80\"}", 8},
        {"{\"a\": \"\xF4\x90\x80\x80\"}", 8}}},
      {"NUL", {{std::string("{\"a\": 1}\0{}", 11), 8}, {std::string("{\"a\": 1}\0", 9), 8}}},
      {"expected an object", {{"[1]", 0}, {"17 ", 2}, {"null", 3}, {"\"text\"", 5}, {std::string(1 << 17, '['), 0}}},
      {"duplicate key \"a\"", {{"{\"a\": 1, \"b\": 2, \"a\": 3}", 19}, {"{\"a\": 1, \"\\u0061\": 3}", 16}}},
      {"duplicate key \"r\"", {{"{\"m\": [{\"r\": 1, \"r\": 2}]}", 18}}},
      {"deeper than 64", {{nested(65), 68}}}};
  for (const auto& [message, texts] : cases) {
    for (const auto& [text, offset] : texts) {
      SCOPED_TRACE(text.substr(0, 80));
      const JsonExample example = parse_json_example(text);
      ASSERT_TRUE(example.problem);
      EXPECT_EQ(example.problem->offset, offset) << example.problem->message;
      EXPECT_SAYS(example.problem->message, message);
    }
  }
}

TEST(JsonExamples, BoundsTheFieldsOfOneObject) {
  std::string example = "{\"k\": 0";
  for (int i = 1; i < 10'000; ++i) example += ",\"k" + std::to_string(i) + "\": 0";
  EXPECT_FALSE(parse_json_example(example + "}").problem);
  const JsonExample more = parse_json_example(example + ", \"last\": 0}");
  ASSERT_TRUE(more.problem);
  EXPECT_EQ(more.problem->message, "an object with more than 10,000 fields");
}

TEST(JsonExamples, AValueMayBeOfAnyKind) {
  for (const char* text : {"5", "\"a\"", "null", "true", "[1,[2]]", "{\"a\":1}", " 1.5 "}) {
    const JsonExample example = parse_json_value(text);
    EXPECT_FALSE(example.problem) << text;
    EXPECT_EQ(example.value, Json::parse(text)) << text;
  }
  EXPECT_TRUE(parse_json_value("").problem);
  for (const char* number : {"18446744073709551615", "9223372036854775808", "-99999999999999999999"})
    EXPECT_SAYS(testing_support::refusal<DataError>([&] { inner_json(number, "tools"); }), "an integer beyond 64 bits");
  EXPECT_EQ(parse_json_example("{\"a\": 9223372036854775807, \"b\": 9223372036854775808}").value["a"], INT64_MAX);
}

TEST(JsonExamples, MessagesNeverQuoteTheFile) {
  const JsonExample example = parse_json_example("{\"a\": \"" + std::string(100000, 'x') + "\xFF");
  ASSERT_TRUE(example.problem);
  EXPECT_LT(example.problem->message.size(), 200U);
  EXPECT_EQ(example.problem->message.find('\xFF'), std::string::npos);
}

}  // namespace
}  // namespace lora_train::data
