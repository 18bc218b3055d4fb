#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/token_cache.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/data/cache/document_store.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

using Ints = std::vector<std::int32_t>;

Ints copy(std::span<const std::int32_t> values) { return {values.begin(), values.end()}; }

std::shared_ptr<const TokenTable> write_two_examples(TokenTableWriter writer) {
  writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 7);
  writer.append(Ints{4}, Ints{4}, 1, 9);
  EXPECT_EQ(writer.num_supervised(), 2);
  return writer.finish("{\"a\": 1}");
}

void expect_two_examples(const TokenTable& table) {
  EXPECT_EQ(table.num_examples(), 2);
  EXPECT_EQ(table.num_tokens(), 4);
  EXPECT_EQ(table.metadata(), "{\"a\": 1}");
  const StoredExample first = table.example(0);
  EXPECT_EQ(copy(first.ids), (Ints{1, 2, 3}));
  EXPECT_EQ(copy(first.labels), (Ints{-100, 2, 3}));
  EXPECT_EQ(first.line, 7U);
  EXPECT_EQ(first.num_supervised, 2U);
  const StoredExample second = table.example(TokenTable::next(0, first));
  EXPECT_EQ(copy(second.ids), Ints{4});
  EXPECT_EQ(second.line, 9U);
  EXPECT_EQ(second.file, 1U);
  EXPECT_EQ(second.num_supervised, 0U);
}

class TokenTableTest : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override { set_log_level(LogLevel::kInfo); }
  std::filesystem::path file_ = folder().path() / "t.tokens";

  static testing_support::TemporaryFolder& folder() {
    static testing_support::TemporaryFolder folder;
    return folder;
  }
};

TEST_F(TokenTableTest, GivesBackWhatWasWritten) {
  expect_two_examples(*write_two_examples(TokenTableWriter({}, "key")));
  expect_two_examples(*write_two_examples(TokenTableWriter(file_, "key")));
  expect_two_examples(TokenTable(MappedFile(file_), "key"));
}

TEST_F(TokenTableTest, EqualExamplesHaveEqualHashes) {
  TokenTableWriter writer({}, "key");
  writer.append(Ints{1, 2}, Ints{-100, 2}, 0, 1);
  writer.append(Ints{1, 2}, Ints{-100, 2}, 0, 2);
  writer.append(Ints{1, 2}, Ints{1, 2}, 0, 3);
  DocumentStore store;
  store.add(writer.finish("{}"), {"f"});
  EXPECT_EQ(store.content_hash(0), store.content_hash(1));
  EXPECT_NE(store.content_hash(0), store.content_hash(2));
}

TEST_F(TokenTableTest, ExamplesMayHaveWeights) {
  const auto write = [](TokenTableWriter writer) {
    writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 1, std::vector<float>{0, 0.5F, 2});
    writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 2);
    writer.append(Ints{4, 5}, Ints{4, 5}, 0, 3, std::vector<float>{1, 3});
    writer.append(Ints{6}, Ints{6}, 0, 4);
    return writer.finish("{}");
  };
  for (const auto& table : {write({{}, "key"}), write({file_, "key"})}) {
    DocumentStore store;
    store.add(table, {"f"});
    ASSERT_EQ(store.size(), 4U);
    const auto first = store.weights(0);
    EXPECT_EQ(std::vector<float>(first.begin(), first.end()), (std::vector<float>{0, 0.5F, 2}));
    EXPECT_TRUE(store.weights(1).empty());
    ASSERT_EQ(store.weights(2).size(), 2U);
    EXPECT_EQ(store.weights(2)[1], 3);
    EXPECT_EQ(store.ids(3)[0], 6);
    EXPECT_EQ(store.source(3), "f:4");
    EXPECT_NE(store.content_hash(0), store.content_hash(1));
  }
  EXPECT_EQ(write({{}, "key"})->example(0).num_supervised, 2U);
}

TEST_F(TokenTableTest, ExamplesWithoutWeightsTakeNoRoomForThem) {
  TokenTableWriter writer({}, "key");
  writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 1);
  const std::size_t plain = writer.finish("{}")->bytes().size();
  TokenTableWriter weighted({}, "key");
  weighted.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 1, std::vector<float>{0, 0.5F, 2});
  EXPECT_EQ(weighted.finish("{}")->bytes().size(), plain + 16);
  EXPECT_EQ(plain, 8U + 32 + 24 + 2 + 112);
}

TEST_F(TokenTableTest, AnotherKeyIsRefused) {
  write_two_examples(TokenTableWriter(file_, "key"));
  EXPECT_THROW(TokenTable(MappedFile(file_), "kez"), FormatError);
}

TEST_F(TokenTableTest, EveryDamagedByteIsNoticed) {
  write_two_examples(TokenTableWriter(file_, "key"));
  const std::string bytes = read_file(file_);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    EXPECT_THROW(TokenTable(MappedFile({}, damaged), "key"), FormatError) << i;
    EXPECT_THROW(TokenTable(MappedFile({}, bytes.substr(0, i)), "key"), FormatError) << i;
  }
  EXPECT_THROW(TokenTable(MappedFile({}, bytes + "x"), "key"), FormatError);
}

TEST_F(TokenTableTest, UnfinishedTableLeavesNothing) {
  {
    TokenTableWriter writer(folder().path() / "u.tokens", "key");
    writer.append(Ints(1 << 20, 1), Ints(1 << 20, 1), 0, 1);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder().path())) {
    EXPECT_EQ(entry.path().filename().string().find("u.tokens"), std::string::npos) << entry.path();
  }
}

TEST_F(TokenTableTest, CacheFindsByKeyAndDropsDamagedFiles) {
  const TokenCache cache(folder().path() / "cache", {});
  EXPECT_EQ(cache.find("key"), nullptr);
  write_two_examples(cache.writer("key"));
  const auto table = cache.find("key");
  ASSERT_NE(table, nullptr);
  expect_two_examples(*table);
  EXPECT_EQ(cache.find("other"), nullptr);
  std::filesystem::resize_file(table->path(), 50);
  EXPECT_EQ(cache.find("key"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(table->path()));
}

TEST_F(TokenTableTest, StagedTableIsCopiedOnceAndReused) {
  const auto stage = folder().path() / "stage";
  const TokenCache cache(folder().path() / "cache2", stage);
  const auto table = write_two_examples(cache.writer("key"));
  const auto staged = cache.staged(table, "key");
  EXPECT_EQ(staged->path(), stage / "key.tokens");
  expect_two_examples(*staged);
  std::filesystem::create_hard_link(staged->path(), stage / "same");
  EXPECT_EQ(cache.staged(table, "key")->path(), staged->path());
  EXPECT_TRUE(std::filesystem::equivalent(staged->path(), stage / "same"));
}

TEST_F(TokenTableTest, FoldersThatCannotBeWrittenDoNotEndTheRun) {
  const auto blocked = folder().path() / "blocked";
  write_file_atomic(blocked, "a file where a folder should be");
  const TokenCache cache(blocked / "cache", blocked / "stage");
  const auto table = write_two_examples(cache.writer("key"));
  expect_two_examples(*table);
  EXPECT_TRUE(table->path().empty());
  const TokenCache good(folder().path() / "cache3", blocked / "stage");
  const auto kept = write_two_examples(good.writer("key"));
  EXPECT_EQ(good.staged(kept, "key"), kept);
}

TEST_F(TokenTableTest, AFileInTheStageFolderThatIsALinkOrAnotherUsersIsNotRead) {
  const auto stage = folder().path() / "stage4";
  std::filesystem::create_directory(stage);
  const TokenCache cache(folder().path() / "cache4", stage);
  const auto table = write_two_examples(cache.writer("key"));
  const auto forged = folder().path() / "forged.tokens";
  TokenTableWriter writer(forged, "key");
  writer.append(Ints{7}, Ints{7}, 0, 1);
  writer.finish("");
  std::filesystem::create_symlink(forged, stage / "key.tokens");
  expect_two_examples(*cache.staged(table, "key"));
  EXPECT_TRUE(std::filesystem::is_symlink(stage / "key.tokens")) << "not ours: left alone";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  std::filesystem::rename(forged, stage / "key.tokens");
  ASSERT_EQ(::chown((stage / "key.tokens").c_str(), 12345, 12345), 0);
  expect_two_examples(*cache.staged(table, "key"));
}

/// What is wrong with stage_dir.
std::string refusal_of(const std::filesystem::path& folder) {
  try {
    find_stage_folder(folder);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(StageFolder, ThatOthersCouldWriteToIsRefusedByName) {
  const testing_support::TemporaryFolder folder;
  const auto stage = folder / "stage";
  EXPECT_EQ(refusal_of(stage), "") << "it does not exist yet";
  std::filesystem::create_directory(stage);
  std::filesystem::create_directory_symlink(stage, folder / "link");
  for (const mode_t mode : {0700U, 0775U, 01777U}) {
    ASSERT_EQ(::chmod(stage.c_str(), mode), 0);
    EXPECT_EQ(refusal_of(stage), "") << mode;
  }
  EXPECT_EQ(refusal_of(folder / "link"), "");
  ASSERT_EQ(::chmod(stage.c_str(), 0777), 0);
  EXPECT_NE(refusal_of(stage).find(stage.string() + " is writable by everyone"), std::string::npos);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  ASSERT_EQ(::chmod(stage.c_str(), 0755), 0);
  ASSERT_EQ(::lchown((folder / "link").c_str(), 12345, 12345), 0);
  EXPECT_NE(refusal_of(folder / "link").find("link belongs to user 12345"), std::string::npos);
  ASSERT_EQ(::lchown((folder / "link").c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(stage.c_str(), 12345, 12345), 0);
  EXPECT_NE(refusal_of(stage).find("belongs to user 12345"), std::string::npos);
  EXPECT_NE(refusal_of(folder / "link").find("link belongs to user 12345"), std::string::npos);
}

TEST_F(TokenTableTest, StageDirAutoIsPrivateAndNeverALink) {
  const std::string old = ::getenv("TMPDIR") == nullptr ? "" : ::getenv("TMPDIR");
  ::setenv("TMPDIR", folder().path().c_str(), 1);
  const auto stage = folder().path() / ("lora-train-stage-" + std::to_string(::geteuid()));
  const TokenCache cache(folder().path() / "cache5", "auto");
  const auto table = write_two_examples(cache.writer("key"));
  EXPECT_EQ(cache.staged(table, "key")->path(), stage / "key.tokens");
  EXPECT_EQ(std::filesystem::status(stage).permissions(), std::filesystem::perms::owner_all);
  std::filesystem::rename(stage, folder().path() / "elsewhere");
  std::filesystem::create_directory_symlink(folder().path() / "elsewhere", stage);
  EXPECT_EQ(cache.staged(table, "key"), table);
  ::setenv("TMPDIR", "/nowhere", 1);
  set_log_level(LogLevel::kWarning);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(TokenCache(folder().path() / "cache5", "auto").staged(table, "key"), table);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("stage_dir: found no folder for temporary files"),
            std::string::npos);
  old.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", old.c_str(), 1);
}

}  // namespace
}  // namespace lora_train::data
