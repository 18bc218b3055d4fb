// lora-train cache, by the real program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/run_command.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;
using testing_support::CommandResult;

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
    return testing_support::run_command(arguments, {.environment = {{"XDG_CACHE_HOME", folder_.path().string()}}});
  }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
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
  EXPECT_TRUE(contains(run({"--list"}).out, "1 tables, 13 B of at most 64.0 GiB"));
  const CommandResult listed = run({"--list", "--json", "--dir", cache_.string()});
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const auto line = nlohmann::json::parse(listed.out);
  EXPECT_EQ(line.at("file"), table_.string());
  EXPECT_EQ(line.at("num_bytes"), 13);
  EXPECT_EQ(line.at("is_in_use"), false);
}

TEST_F(CacheCommand, RefusesAFolderThatIsNone) {
  for (const char* flag : {"--list", "--clear"}) {
    CommandResult refused = run({flag, "--dir", "/nowhere"});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(contains(refused.err, "/nowhere does not exist")) << refused.err;
    refused = run({flag, "--dir", foreign_.string()});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(contains(refused.err, "mine.tokens is not a folder")) << refused.err;
    refused = testing_support::run_command({LORA_TRAIN_PROGRAM, "cache", flag},
                                           {.environment = {{"XDG_CACHE_HOME", "relative"}, {"HOME", ""}}});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(contains(refused.err, "neither XDG_CACHE_HOME nor HOME")) << refused.err;
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
  for (const char* age : {"", "soon", "-1d", "30 d"}) {
    const CommandResult refused = run({"--clear", std::string("--older-than=") + age});
    EXPECT_EQ(refused.exit_code, 2) << age;
    EXPECT_TRUE(contains(refused.err, "--older-than")) << refused.err;
  }
  EXPECT_EQ(run({"--list", "--older-than", "1d"}).exit_code, 2);
  EXPECT_TRUE(fs::exists(table_));
}

TEST_F(CacheCommand, RefusesAFolderOfTheUserThatIsALink) {
  fs::rename(cache_, folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", cache_);
  const CommandResult refused = run({"--clear"});
  EXPECT_EQ(refused.exit_code, 5);
  EXPECT_TRUE(contains(refused.err, "is a link")) << refused.err;
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere" / table_.filename()));
}

}  // namespace
}  // namespace lora_train
