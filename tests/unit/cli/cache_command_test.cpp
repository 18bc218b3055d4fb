// lora-train cache, by the real program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "program_fixture.h"
#include "support/test_data.h"

namespace lora_train {
namespace {

class CacheCommand : public testing::Test {
 protected:
  CacheCommand() {
    fs::create_directories(cache_);
    testing_support::write_text(table_, "LTOKENS3 rows");
    testing_support::write_text(foreign_, "kept");
    testing_support::write_text(named_alike_, "kept");
  }

  CommandResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {LORA_TRAIN_PROGRAM, "cache"});
    return run_command(arguments, {.environment = {{"XDG_CACHE_HOME", folder_.path().string()}}});
  }
  testing_support::TemporaryFolder folder_;
  const fs::path cache_ = folder_ / "lora-train/tokens";
  const fs::path table_ = cache_ / (std::string(32, 'a') + ".tokens"), foreign_ = cache_ / "mine.tokens",
                 named_alike_ = cache_ / "d41d8cd98f00b204e9800998ecf8427e.tokens";
};

TEST_F(CacheCommand, WantsToKnowWhatToDo) {
  EXPECT_EQ(run({}).exit_code, 2);
  EXPECT_EQ(run({"--list", "--clear"}).exit_code, 2);
}

TEST_F(CacheCommand, ListsTables) {
  expect_parts(run({"--list"}).out, {"1 tables, 13 B of at most 64.0 GiB"});
  const CommandResult listed = run({"--list", "--json", "--dir", cache_.string()});
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const auto line = nlohmann::json::parse(listed.out);
  EXPECT_EQ(line.at("file"), table_.string());
  testing_support::expect_members(line, R"({"num_bytes": 13, "is_in_use": false})");
}

TEST_F(CacheCommand, RefusesAFolderThatIsNone) {
  for (const char* flag : {"--list", "--clear"}) {
    expect_error(run({flag, "--dir", "/nowhere"}), 2, {"/nowhere does not exist"});
    expect_error(run({flag, "--dir", foreign_.string()}), 2, {"mine.tokens is not a folder"});
    expect_error(run_command({LORA_TRAIN_PROGRAM, "cache", flag},
                             {.environment = {{"XDG_CACHE_HOME", "relative"}, {"HOME", ""}}}),
                 2, {"neither XDG_CACHE_HOME nor HOME"});
  }
}

TEST_F(CacheCommand, ClearsTablesOnly) {
  const CommandResult cleared = run({"--clear"});
  EXPECT_TRUE(contains(cleared.out, "deleted 1 tables, 13 B")) << cleared.out << cleared.err;
  EXPECT_FALSE(fs::exists(table_));
  EXPECT_TRUE(fs::exists(foreign_) && fs::exists(named_alike_));
}

TEST_F(CacheCommand, ClearsTablesOlderThanAnAge) {
  const fs::path old = cache_ / (std::string(32, 'b') + ".tokens");
  testing_support::write_text(old, "LTOKENS3 rows");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(49));
  EXPECT_TRUE(contains(run({"--clear", "--older-than", "3d"}).out, "deleted 0 tables"));
  EXPECT_TRUE(contains(run({"--clear", "--older-than", "2d"}).out, "deleted 1 tables, 13 B\n"));
  EXPECT_TRUE(!fs::exists(old) && fs::exists(table_));
  for (const std::string age : {"", "soon", "-1d", "30 d"})
    expect_error(run({"--clear", "--older-than=" + age}), 2, {"--older-than"});
  EXPECT_EQ(run({"--list", "--older-than", "1d"}).exit_code, 2);
  EXPECT_TRUE(fs::exists(table_));
}

TEST_F(CacheCommand, RefusesAFolderOfTheUserThatIsALink) {
  fs::rename(cache_, folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", cache_);
  expect_error(run({"--clear"}), 5, {"is a link"});
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere" / table_.filename()));
}

}  // namespace
}  // namespace lora_train
