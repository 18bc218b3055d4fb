// Which files of the token cache are deleted, and which never.
#include "cache/token_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/token_cache_files.h"
#include "support/environment.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

std::string key_of(char letter) { return std::string(32, letter); }

class TokenCacheTest : public testing::Test {
 protected:
  TokenCacheTest() { set_log_level(LogLevel::kOff); }
  ~TokenCacheTest() override { set_log_level(LogLevel::kInfo); }

  /// About 8 KB, last used `age` hours ago.
  std::shared_ptr<const TokenTable> add_table(const TokenCache& cache, char letter, int age) {
    TokenTableWriter writer = cache.writer(key_of(letter));
    const std::vector<std::int32_t> ids(1000, 1);
    writer.append(ids, ids, 0, 1);
    auto table = writer.finish("{}");
    if (!table->path().empty())
      fs::last_write_time(table->path(), fs::file_time_type::clock::now() - std::chrono::hours(age));
    return table;
  }
  fs::path write(const std::string& name, const std::string& text = "mine") {
    fs::create_directories(cache_folder_);
    std::ofstream(cache_folder_ / name) << text;
    return cache_folder_ / name;
  }
  Names names() const { return list_folder(cache_folder_); }
  static std::string table(char letter) { return key_of(letter) + ".tokens"; }

  testing_support::TemporaryFolder folder_;
  testing_support::ScopedEnvironment environment_;
  const fs::path cache_folder_ = folder_ / "cache";
};

TEST_F(TokenCacheTest, DeletesWhatWasNotUsedForLongestBeyondTheLimit) {
  environment_.set("LORA_TRAIN_CACHE_MAXSIZE", "18K");  // two tables
  const TokenCache cache(cache_folder_, {});
  for (const char letter : {'a', 'b', 'c', 'd'}) add_table(cache, letter, letter);
  cache.find(key_of('d'));  // used now
  cache.shrink();
  EXPECT_EQ(names(), (Names{table('a'), table('d')}));
}

TEST_F(TokenCacheTest, KeepsTablesThatSomebodyUses) {
  environment_.set("LORA_TRAIN_CACHE_MAXSIZE", "1");
  const TokenCache cache(cache_folder_, {});
  const auto written = add_table(cache, 'a', 3);
  add_table(cache, 'b', 2);
  const auto found = cache.find(key_of('b'));
  add_table(cache, 'c', 1);
  const auto listed = list_token_tables(cache_folder_);
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_TRUE(listed[0].is_in_use && listed[1].is_in_use == false && listed[2].is_in_use);  // b was used last
  shrink_token_cache(cache_folder_, 0);
  EXPECT_EQ(names(), (Names{table('a'), table('b')}));
  EXPECT_EQ(written->num_tokens() + found->num_tokens(), 2000);
}

TEST_F(TokenCacheTest, SweepsTemporariesWithoutAWriterOnly) {
  const TokenCache cache(cache_folder_, {});
  const std::string dead = ".tmp-" + table('a') + "-4242-17";
  write(dead, "LTOKENS3 and examples");
  TokenTableWriter live = cache.writer(key_of('b'));
  ASSERT_EQ(names().size(), 1U) << "the writer sweeps before it begins";
  const std::string temporary = names().front();
  EXPECT_TRUE(temporary.starts_with(".tmp-" + table('b'))) << temporary;
  sweep_token_cache(cache_folder_);
  EXPECT_EQ(names(), Names{temporary});
  const std::vector<std::int32_t> ids = {1};
  live.append(ids, ids, 0, 1);
  EXPECT_EQ(live.finish("{}")->num_examples(), 1);
}

TEST_F(TokenCacheTest, NeverTouchesForeignFiles) {
  const std::string temporary = ".tmp-" + table('a') + "-";
  const Names foreign = {temporary + "4242-17",
                         temporary + "4242-17x",
                         temporary,
                         ".tmp-mine.tokens-4242-17",
                         table('b'),
                         table('A'),
                         table('a') + ".bak",
                         "b" + table('a'),
                         "mine.tokens",
                         "notes.txt"};
  for (const std::string& name : foreign) write(name);
  const fs::path target = folder_ / "target";
  std::ofstream(target) << "mine";
  fs::create_symlink(target, cache_folder_ / table('c'));
  fs::create_directory(cache_folder_ / table('d'));
  Names all = names();
  environment_.set("LORA_TRAIN_CACHE_MAXSIZE", "1");
  const TokenCache cache(cache_folder_, {});
  EXPECT_EQ(cache.find(key_of('c')), nullptr);
  EXPECT_TRUE(add_table(cache, 'c', 1)->path().empty()) << "not in the place of a link";
  EXPECT_TRUE(add_table(cache, 'd', 1)->path().empty());
  EXPECT_EQ(cache.find(key_of('b')), nullptr);
  EXPECT_TRUE(add_table(cache, 'b', 1)->path().empty()) << "not in the place of a foreign file";
  sweep_token_cache(cache_folder_);
  EXPECT_EQ(shrink_token_cache(cache_folder_, 0).num_tables, 0U);
  EXPECT_EQ(names(), all);
  EXPECT_EQ(fs::file_size(target), 4U);
}

TEST_F(TokenCacheTest, TablesOfOlderVersionsAndDamagedOnesAreStillItsOwn) {
  write(table('a'), "rows" + ("LTOKENS2" + std::string(104, 'x')));
  write(table('b'), "LTOKENS3 cut off");
  EXPECT_EQ(list_token_tables(cache_folder_).size(), 2U);
  const TokenCache cache(cache_folder_, {});
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(cache.find(key_of('a')), nullptr);
  EXPECT_EQ(cache.find(key_of('b')), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_SAYS(said, "not a token table of this version; rebuilding it");
  EXPECT_SAYS(said, "too short for a token table; rebuilding it");
  EXPECT_TRUE(names().empty());
}

TEST_F(TokenCacheTest, ATableThatCannotBeLockedIsNotInUseAndStays) {
  const fs::path file = write(table('a'), "LTOKENS3 examples");
  ::chmod(file.c_str(), 0444);
  fs::permissions(folder_.path(), fs::perms(0755));
  const bool is_root = ::geteuid() == 0;
  ASSERT_TRUE(!is_root || ::seteuid(65534) == 0);
  const auto tables = list_token_tables(cache_folder_);
  const DeletedTables deleted = shrink_token_cache(cache_folder_, 0);
  ASSERT_TRUE(!is_root || ::seteuid(0) == 0);
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_FALSE(tables[0].is_in_use);
  EXPECT_EQ(deleted.num_tables, 0U);
}

TEST_F(TokenCacheTest, ARelativeXdgCacheHomeIsIgnored) {
  environment_.set("HOME", "/home/someone");
  environment_.set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(user_token_cache(), "/home/someone/.cache/lora-train/tokens");
  environment_.set("HOME", "");
  EXPECT_TRUE(user_token_cache().empty());
}

TEST_F(TokenCacheTest, ReadsTheLimitAsCcacheDoes) {
  const auto limit_of = [&](const char* text) {
    environment_.set("LORA_TRAIN_CACHE_MAXSIZE", text);
    return token_cache_limit();
  };
  EXPECT_EQ(limit_of(""), std::uint64_t{64} << 30);
  EXPECT_EQ(limit_of("100"), std::uint64_t{100} << 30);
  EXPECT_EQ(limit_of("1.5G"), std::uint64_t{3} << 29);
  EXPECT_EQ(limit_of("500MiB"), std::uint64_t{500} << 20);
  EXPECT_EQ(limit_of("2TB"), std::uint64_t{2} << 40);
  EXPECT_EQ(limit_of("0"), kNoCacheLimit);
  for (const char* text : {"much", "-1", "nan", "1X", "1GG", "1e30"}) EXPECT_THROW(limit_of(text), ConfigError) << text;
}

TEST_F(TokenCacheTest, ThePlaceOfTheUserIsPrivateOrNotUsed) {
  environment_.set("XDG_CACHE_HOME", (folder_ / "xdg").string());
  const fs::path own = user_token_cache();
  EXPECT_EQ(own, folder_ / "xdg/lora-train/tokens");
  EXPECT_FALSE(add_table(TokenCache(own, {}), 'a', 1)->path().empty());
  struct stat info {};
  ASSERT_EQ(::stat(own.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
  ::chmod(own.c_str(), 0777);
  const TokenCache open(own, {});
  EXPECT_EQ(open.find(key_of('a')), nullptr) << "others may have written it";
  EXPECT_TRUE(add_table(open, 'b', 1)->path().empty());
  fs::rename(own, folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", own);
  EXPECT_TRUE(add_table(TokenCache(own, {}), 'b', 1)->path().empty());
  EXPECT_EQ(list_folder(folder_ / "elsewhere"), Names{table('a')});
}

TEST_F(TokenCacheTest, OneProcessBuildsATableAndTheOthersWait) {
  const TokenCache cache(cache_folder_, {});
  auto building = cache.wait_to_build(key_of('a'), "");
  cache.wait_to_build(key_of('b'), "");  // another table: nobody waits
  std::shared_ptr<const TokenTable> found;
  std::atomic<bool> has_waited = false;
  std::thread other([&] {
    const auto turn = cache.wait_to_build(key_of('a'), "");
    has_waited = true;
    found = cache.find(key_of('a'));
  });
  const auto built = add_table(cache, 'a', 0);
  EXPECT_FALSE(has_waited);
  building = Descriptor();
  other.join();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->num_tokens(), built->num_tokens());
}

TEST_F(TokenCacheTest, AStopEndsTheWaitAndWhereLocksAreNotPossibleNobodyWaits) {
  const StopRequests requests;
  const TokenCache cache(cache_folder_, {});
  {
    const auto building = cache.wait_to_build(key_of('a'), "");
    set_max_time(0);
    EXPECT_THROW(cache.wait_to_build(key_of('a'), ""), StopError);
  }
  fs::remove(cache_folder_ / ".lock");
  ASSERT_EQ(::mkfifo((cache_folder_ / ".lock").c_str(), 0600), 0);
  const auto first = cache.wait_to_build(key_of('a'), ""), second = cache.wait_to_build(key_of('a'), "");
  EXPECT_FALSE(TokenCache({}, {}).wait_to_build(key_of('a'), "").is_open());
}

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

class TokenTableTest : public TokenCacheTest {
 protected:
  const fs::path file_ = folder_ / "t.tokens";
};

TEST_F(TokenTableTest, GivesBackWhatWasWritten) {
  expect_two_examples(*write_two_examples(TokenTableWriter({}, "key")));
  expect_two_examples(*write_two_examples(TokenTableWriter(file_, "key")));
  expect_two_examples(TokenTable(MappedFile(file_), "key"));
}

TEST_F(TokenTableTest, ExamplesMayHaveWeightsAndEqualOnesHaveEqualHashes) {
  const auto write = [](TokenTableWriter writer) {
    writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 1, std::vector<float>{0, 0.5F, 2});
    writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 2);
    writer.append(Ints{4, 5}, Ints{4, 5}, 0, 3, std::vector<float>{1, 3});
    writer.append(Ints{6}, Ints{6}, 0, 4);
    writer.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, 0, 5);
    writer.append(Ints{1, 2, 3}, Ints{1, 2, 3}, 0, 6);
    return writer.finish("{}");
  };
  for (const auto& table : {write({{}, "key"}), write({file_, "key"})}) {
    DocumentStore store;
    store.add(table, {"f"});
    ASSERT_EQ(store.size(), 6U);
    const auto first = store.weights(0);
    EXPECT_EQ(std::vector<float>(first.begin(), first.end()), (std::vector<float>{0, 0.5F, 2}));
    EXPECT_TRUE(store.weights(1).empty());
    ASSERT_EQ(store.weights(2).size(), 2U);
    EXPECT_EQ(store.weights(2)[1], 3);
    EXPECT_EQ(store.ids(3)[0], 6);
    EXPECT_EQ(store.source(3), "f:4");
    EXPECT_EQ(store.content_hash(1), store.content_hash(4));
    for (const std::size_t other : {0U, 5U}) EXPECT_NE(store.content_hash(1), store.content_hash(other));
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

TEST_F(TokenTableTest, EveryDamagedByteIsNoticed) {
  write_two_examples(TokenTableWriter(file_, "key"));
  EXPECT_THROW(TokenTable(MappedFile(file_), "kez"), FormatError) << "another key";
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
    TokenTableWriter writer(folder_ / "u.tokens", "key");
    writer.append(Ints(1 << 18, 1), Ints(1 << 18, 1), 0, 1);
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(TokenTableTest, CacheFindsByKeyAndDropsDamagedFiles) {
  const TokenCache cache(folder_ / "cache", {});
  EXPECT_EQ(cache.find("key"), nullptr);
  write_two_examples(cache.writer("key"));
  const auto table = cache.find("key");
  ASSERT_NE(table, nullptr);
  expect_two_examples(*table);
  EXPECT_EQ(cache.find("other"), nullptr);
  fs::resize_file(table->path(), 50);
  EXPECT_EQ(cache.find("key"), nullptr);
  EXPECT_FALSE(fs::exists(table->path()));
}

TEST_F(TokenTableTest, StagedTableIsCopiedOnceAndReused) {
  const auto stage = folder_ / "stage";
  const TokenCache cache(folder_ / "cache", stage);
  const auto table = write_two_examples(cache.writer("key"));
  const auto staged = cache.staged(table, "key");
  EXPECT_EQ(staged->path(), stage / "key.tokens");
  expect_two_examples(*staged);
  fs::create_hard_link(staged->path(), stage / "same");
  EXPECT_EQ(cache.staged(table, "key")->path(), staged->path());
  EXPECT_TRUE(fs::equivalent(staged->path(), stage / "same"));
}

TEST_F(TokenTableTest, FoldersThatCannotBeWrittenDoNotEndTheRun) {
  const auto blocked = folder_ / "blocked";
  write_file_atomic(blocked, "a file where a folder should be");
  const TokenCache cache(blocked / "cache", blocked / "stage");
  const auto table = write_two_examples(cache.writer("key"));
  expect_two_examples(*table);
  EXPECT_TRUE(table->path().empty());
  const TokenCache good(folder_ / "cache", blocked / "stage");
  const auto kept = write_two_examples(good.writer("key"));
  EXPECT_EQ(good.staged(kept, "key"), kept);
}

TEST_F(TokenTableTest, AFileInTheStageFolderThatIsALinkOrAnotherUsersIsNotRead) {
  const auto stage = folder_ / "stage";
  fs::create_directory(stage);
  const TokenCache cache(folder_ / "cache", stage);
  const auto table = write_two_examples(cache.writer("key"));
  const auto forged = folder_ / "forged.tokens";
  TokenTableWriter writer(forged, "key");
  writer.append(Ints{7}, Ints{7}, 0, 1);
  writer.finish("");
  fs::create_symlink(forged, stage / "key.tokens");
  expect_two_examples(*cache.staged(table, "key"));
  EXPECT_TRUE(fs::is_symlink(stage / "key.tokens")) << "not ours: left alone";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  fs::rename(forged, stage / "key.tokens");
  ASSERT_EQ(::chown((stage / "key.tokens").c_str(), 12345, 12345), 0);
  expect_two_examples(*cache.staged(table, "key"));
}

/// What is wrong with stage_dir.
std::string refusal(const fs::path& folder) {
  return testing_support::refusal<ConfigError>([&] { find_stage_folder(folder); });
}

TEST(StageFolder, ThatOthersCouldWriteToIsRefusedByName) {
  const testing_support::TemporaryFolder folder;
  const auto stage = folder / "stage";
  EXPECT_EQ(refusal(stage), "accepted") << "it does not exist yet";
  fs::create_directory(stage);
  fs::create_directory_symlink(stage, folder / "link");
  for (const mode_t mode : {0700U, 0775U, 01777U}) {
    ASSERT_EQ(::chmod(stage.c_str(), mode), 0);
    EXPECT_EQ(refusal(stage), "accepted") << mode;
  }
  EXPECT_EQ(refusal(folder / "link"), "accepted");
  ASSERT_EQ(::chmod(stage.c_str(), 0777), 0);
  EXPECT_SAYS(refusal(stage), stage.string() + " is writable by everyone");
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  ASSERT_EQ(::chmod(stage.c_str(), 0755), 0);
  ASSERT_EQ(::lchown((folder / "link").c_str(), 12345, 12345), 0);
  EXPECT_SAYS(refusal(folder / "link"), "link belongs to user 12345");
  ASSERT_EQ(::lchown((folder / "link").c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(stage.c_str(), 12345, 12345), 0);
  EXPECT_SAYS(refusal(stage), "belongs to user 12345");
  EXPECT_SAYS(refusal(folder / "link"), "link belongs to user 12345");
}

TEST_F(TokenTableTest, StageDirAutoIsPrivateAndNeverALink) {
  environment_.set("TMPDIR", folder_.path().string());
  const auto stage = folder_ / ("lora-train-stage-" + std::to_string(::geteuid()));
  const TokenCache cache(folder_ / "cache", "auto");
  const auto table = write_two_examples(cache.writer("key"));
  EXPECT_EQ(cache.staged(table, "key")->path(), stage / "key.tokens");
  EXPECT_EQ(fs::status(stage).permissions(), fs::perms::owner_all);
  fs::rename(stage, folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", stage);
  EXPECT_EQ(cache.staged(table, "key"), table);
  environment_.set("TMPDIR", "/nowhere");
  set_log_level(LogLevel::kWarning);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(TokenCache(folder_ / "cache", "auto").staged(table, "key"), table);
  EXPECT_SAYS(::testing::internal::GetCapturedStderr(), "stage_dir: found no folder for temporary files");
}

}  // namespace
}  // namespace lora_train::data
