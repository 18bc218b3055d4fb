#include "data/row_reader.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

class RowReader : public testing::Test {
 protected:
  // "line" of a good row, "line:byte message" of a bad one, or "! file:line:byte" when reading ends in an error.
  std::vector<std::string> read(std::string_view bytes) {
    const auto file = folder_ / "rows.jsonl";
    write_file_atomic(file, bytes);
    std::vector<std::string> out;
    messages_.clear();
    try {
      read_rows(file, [&](RawRow&& row) {
        out.push_back(row.is_bad ? row.where.substr(file.string().size() + 1) : std::to_string(row.line));
        messages_ += row.message;
        return true;
      });
    } catch (const DataError& error) {
      out.push_back("!" + error.where().substr(file.string().size()));
      messages_ += error.message();
    }
    return out;
  }
  bool says(const char* part) const { return messages_.find(part) != std::string::npos; }

  testing_support::TemporaryFolder folder_;
  std::string messages_;
};

using Places = std::vector<std::string>;

TEST_F(RowReader, SkipsBlankLinesAndTakesCrLf) {
  EXPECT_EQ(read("{\"a\":1}\r\n\r\n  \n{\"a\":2}\n\n{\"a\":3}"), (Places{"1", "4", "6"}));
}

TEST_F(RowReader, TakesAByteOrderMarkOnTheFirstLineOnly) {
  EXPECT_EQ(read("\xEF\xBB\xBF{\"a\":1}\n{}\n"), (Places{"1", "2"}));
  EXPECT_EQ(read("{\"a\":1}\n\xEF\xBB\xBF{}\n"), (Places{"1", "2:1"}));
  EXPECT_TRUE(says("byte order mark"));
  EXPECT_EQ(read("\xEF\xBB\xBF\xEF\xBB\xBF{}\n"), (Places{"1:4"}));
}

TEST_F(RowReader, CountsTheByteOrderMarkInPlaces) { EXPECT_EQ(read("\xEF\xBB\xBF{\"a\":x}\n"), (Places{"1:9"})); }

TEST_F(RowReader, GoesOnAfterABadLine) {
  EXPECT_EQ(read("{\"a\":1}\n{\"a\":NaN}\n{\"a\":2}\n"), (Places{"1", "2:6", "3"}));
}

TEST_F(RowReader, SaysThatATruncatedLastLineLooksTruncated) {
  EXPECT_EQ(read("{\"a\":1}\n{\"a\":\"x"), (Places{"1", "2:8"}));
  EXPECT_TRUE(says("truncated"));
}

TEST_F(RowReader, CarriageReturnIsPartOfTheLineEnd) {
  EXPECT_EQ(read("{\"a\":\"x\r\n{}\r\n"), (Places{"1:8", "2"}));
  EXPECT_TRUE(says("every line holds one whole object"));
}

TEST_F(RowReader, ExplainsAPrettyPrintedObject) {
  EXPECT_EQ(read("{\n\"a\":1\n}\n").front(), "1:2");
  EXPECT_TRUE(says("one JSON array"));
}

TEST_F(RowReader, RefusesALineOver64MiB) {
  std::string big = "{\"a\":\"" + std::string(64 << 20, 'x') + "\"}\n{}\n";
  EXPECT_EQ(read(big), (Places{"1:67108865", "2"}));
  EXPECT_TRUE(says("64 MiB"));
}

TEST_F(RowReader, ReadsAnArrayWithTheLineOfEachRow) {
  EXPECT_EQ(read("\n[\n  {\"a\":1},\n  {\"a\":2}, {\"a\":\n3}\n]\n"), (Places{"3", "4", "4"}));
}

TEST_F(RowReader, PlacesAreExactInAnArray) {
  EXPECT_EQ(read("[\n{\"a\":1},\n {\"a\":1,\"a\":2},\n{}]"), (Places{"2", "3:11", "4"}));
  EXPECT_EQ(read("[\n{\"a\":1},\n  nope]"), (Places{"2", "!:3:4"}));
  EXPECT_EQ(read("[{\"a\":1},"), (Places{"1", "!:1:10"}));
  EXPECT_EQ(read("[{\"a\":1}]\n{}"), (Places{"1", "!:2:1"}));
}

TEST_F(RowReader, RefusesFilesOfAnotherKind) {
  EXPECT_EQ(read("\xFF\xFE{\0"), (Places{"!:1:1"}));
  EXPECT_TRUE(says("UTF-16"));
  EXPECT_EQ(read("\x1F\x8B\x08"), (Places{"!:1:1"}));
  EXPECT_TRUE(says("unpack"));
}

TEST_F(RowReader, RefusesAFileWithoutRows) {
  EXPECT_EQ(read(""), (Places{"!"}));
  EXPECT_TRUE(says("no row"));
  EXPECT_EQ(read("\xEF\xBB\xBF \r\n\n"), (Places{"!"}));
}

TEST_F(RowReader, FingerprintFollowsTheBytes) {
  const auto hash_of = [&](const char* bytes) {
    write_file_atomic(folder_ / "f", bytes);
    return read_rows(folder_ / "f", [](RawRow&&) { return true; });
  };
  EXPECT_EQ(hash_of("{}\n"), hash_of("{}\n"));
  EXPECT_NE(hash_of("{}\n"), hash_of("{} \n"));
}

TEST_F(RowReader, MissingFileIsAnIoError) {
  EXPECT_THROW(read_rows(folder_ / "none", [](RawRow&&) { return true; }), IoError);
}

}  // namespace
}  // namespace lora_train::data
