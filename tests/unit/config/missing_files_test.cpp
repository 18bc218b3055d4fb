#include <gtest/gtest.h>

#include "lora_train/config/check.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

TEST(MissingFiles, NamesEachWithItsPlace) {
  ProfileText files;
  const auto lines =
      missing_files(files.load("model: /nowhere/m\ndatasets: [/nowhere/a.jsonl, '/nowhere/*.jsonl']\n"
                               "eval_datasets: [/nowhere/b]\nchat_template: /nowhere/t.jinja\n"
                               "init_adapter: /nowhere/c\nresume_from_checkpoint: /nowhere/d\n"));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_NE(lines[0].find("profile.yaml:1: model: no such file or folder \"/nowhere/m\""), std::string::npos)
      << lines[0];
  EXPECT_NE(lines[4].find("profile.yaml:2: datasets[1].path: no file matches \"/nowhere/*.jsonl\""), std::string::npos)
      << lines[4];
}

TEST(MissingFiles, FindsFilesFoldersAndGlobs) {
  ProfileText files;
  files.write("data/a.jsonl", "{}");
  const std::string folder = (files.folder() / "data").string();
  const LoadedProfile loaded = files.load("model: " + folder + "\ndatasets: [" + folder + ", " + folder +
                                          "/a.jsonl, '" + folder + "/*.jsonl']\n");
  EXPECT_TRUE(missing_files(loaded).empty());
  EXPECT_NO_THROW(refuse_missing_files(loaded));
}

TEST(MissingFiles, ANameOfTheCacheIsNoPath) {
  ProfileText files;
  EXPECT_TRUE(missing_files(files.load("model: Qwen/Qwen3-4B\n")).empty());
  EXPECT_TRUE(missing_files(files.load("model: Qwen/Qwen3-4B@main\n")).empty());
  EXPECT_EQ(missing_files(files.load("model: models/q/x\n")).size(), 1u);
  EXPECT_EQ(missing_files(files.load("model: ./x\n")).size(), 1u);
}

TEST(MissingFiles, AGlobIsWhatTheLoaderMatches) {
  ProfileText files;
  files.write("data/a.jsonl", "{}");
  files.environment["HOME"] = files.folder().string();
  EXPECT_TRUE(missing_files(files.load("datasets: ['~/data/*.jsonl']\nmodel: ~/data\n")).empty());
  EXPECT_EQ(missing_files(files.load("datasets: ['~/data/{a,b}*.jsonl']\n")).size(), 1u) << "no braces there either";
}

TEST(MissingFiles, AreAUsageError) {
  ProfileText files;
  EXPECT_THROW(refuse_missing_files(files.load("datasets: [/nowhere/a]\n")), ConfigError);
}

}  // namespace
}  // namespace lora_train
