// Malformed profiles that no other test of this folder has: where the message begins, and words in it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

struct Malformed {
  std::string text;
  const char* start;
  const char* word = "";
};

void expect_mistake(const std::string& error, const char* start, const char* word) {
  EXPECT_TRUE(error.starts_with(start)) << error.substr(0, 300) << "\ndoes not start with " << start;
  EXPECT_NE(error.find(word), std::string::npos) << word << " is not in " << error.substr(0, 1000);
  EXPECT_LT(error.size(), 10'000U);
}

void expect_mistakes(const std::vector<Malformed>& cases) {
  const ProfileText files;
  for (const auto& [text, start, word] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    expect_mistake(files.error(text), start, word);
  }
}

TEST(MalformedProfile, TextThatIsNoMap) {
  std::string many = "seed: 1\n";
  for (int i = 0; i < 4000; ++i) many += "key" + std::to_string(i) + ": 1\n";
  const char *map = "profile.yaml:1: a profile is a map", *yaml = "not valid YAML or JSON";
  expect_mistakes({
      {"hello\n", map},
      {"<html><body>404 Not Found</body></html>\n", map},
      {"seed: 1\nrun_name: a: b\n", "profile.yaml:2: ", yaml},
      {"seed: 1\nlora_r: 8\n  lora_alpha: 16\n", "profile.yaml:3: ", yaml},
      {"run_name: \"mine\nlora_r: 8\n", "profile.yaml:", yaml},
      {"seed: 1\nadd_tokens: *mine\n", "profile.yaml:2: ", "anchor is not defined"},
      {"lora_r: " + std::string(100'000, '['), "profile.yaml:1: ", "nested too deep"},
      {many, "profile.yaml:2: key0: unknown key", "and 3950 more mistakes"},
      {"? " + std::string(2'000'000, 'k') + "\n: 1\n", "profile.yaml:1: a key of 2000000 characters"},
      {"lora_r: " + std::string(2'000'000, '8') + "\n", "profile.yaml:1: lora_r: got \"888", "expected an integer"},
      {"seed: 1\nrun_name: caf\xE9\n", "profile.yaml:2: not valid UTF-8"},
      {std::string("\xFF\xFEm\0o\0", 6), "profile.yaml: ", "in UTF-8"},
      {"seed: 1\noutput_dir: \"runs/a\\0b\"\n", "profile.yaml:2: ", "a NUL byte"},
      {"%YAML 9.9\n---\nseed: 1\n", "profile.yaml:1: ", "version"},
      {"lora_r: !!python/object/apply:os.system [ls]\n", "profile.yaml:1: lora_r: got a list"},
      {"{\"seed\": 1,\n\"datasets\": [\"d\"]", "profile.yaml:2: ", yaml},
      {"{\"seed\": 1} {\"lora_r\": 8}", "profile.yaml:", "what follows the last brace"},
  });
}

TEST(MalformedProfile, KeysAndValues) {
  expect_mistakes({
      {"Lora_R: 8\n", "profile.yaml:1: Lora_R: unknown key", "\"lora_r\""},
      {"zero_stage: 3\n", "profile.yaml:1: zero_stage: ", "the model is never sharded"},
      {"datasets:\n  - type: text\n", "profile.yaml:2: datasets[0]: has no path"},
      {"lora_r: 0x10\n", "profile.yaml:1: lora_r: got \"0x10\", expected an integer"},
      {"max_grad_norm: .inf\n", "profile.yaml:1: max_grad_norm: got \".inf\", expected"},
      {"max_steps: 99999999999999999999\n", "profile.yaml:1: max_steps: got", "expected"},
      {"warmup_ratio: 1.5\n", "profile.yaml:1: warmup_ratio: got \"1.5\", expected"},
      {"max_time: 2 weeks\n", "profile.yaml:1: max_time: got", "2h30m"},
      {"save_steps: 1.5\n", "profile.yaml:1: save_steps: got", "a number of steps"},
      {"run_name: {a: b}\n", "profile.yaml:1: run_name: got a map"},
      {"output_dir: \"runs/{run_name}\"\nrun_name: \"..\"\n",
       "profile.yaml:1: output_dir: ", "leads to another folder"},
  });
}

TEST(MalformedProfile, FilesThatExtendOneAnother) {
  const ProfileText files;
  std::filesystem::create_directory(files.folder() / "d");
  expect_mistake(files.error("seed: 1\nextends: d\n"), "profile.yaml:2: extends: ", "is a folder");
  ASSERT_EQ(::mkfifo((files.folder() / "pipe").c_str(), 0600), 0);
  expect_mistake(files.error("extends: pipe\n"), "profile.yaml:1: extends: ", "is a pipe or a device");
  expect_mistake(files.error_of_files({(files.folder() / "pipe").string()}), "pipe: is a pipe or a device", "");
  files.write("base.yaml", "seed: x\n");
  expect_mistake(files.error("extends: base.yaml\n"), "base.yaml:1: seed: got \"x\"", "");
  // Thirty files that name the next one twice: a thousand million readings of the last.
  for (int i = 0; i < 30; ++i)
    files.write(fmt::format("p{}.yaml", i), fmt::format("extends: [p{0}.yaml, p{0}.yaml]\n", i + 1));
  files.write("p30.yaml", "seed: 1\n");
  expect_mistake(files.error("extends: p0.yaml\n"), "p", "more than 200 files extend one another");
  for (int i = 0; i < 300; ++i) files.write(fmt::format("c{}.yaml", i), fmt::format("extends: c{}.yaml\n", i + 1));
  expect_mistake(files.error("extends: c0.yaml\n"), "c", "more than 200 files extend one another");
}

TEST(MalformedProfile, SettingsThatAreNone) {
  try {
    parse_override("lora_r");
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), "--set");
    EXPECT_TRUE(error.message().starts_with("\"lora_r\" is not a setting. Expected key=value")) << error.message();
  }
  const ProfileText files;
  expect_mistake(files.error("", {"lora_rnk=8"}), "--set: lora_rnk: unknown key", "");
  expect_mistake(files.error("", {"lora_r=x"}), "--set: lora_r: got \"x\"", "");
  expect_mistake(files.error("", {"datasets[=x"}), "--set: datasets[: is not a place in a profile", "");
}

TEST(MalformedProfile, WhatCannotBeParsedIsTheOnlyMistake) {
  const ProfileText files;
  ProfileSources sources;
  sources.profiles = {files.write("p.yaml", "model: [m\n")};
  try {
    load_profile(sources);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().find(": missing"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("not valid YAML or JSON"), std::string::npos) << error.message();
  }
}

TEST(MalformedProfile, MarksLineEndsAnchorsAndCommentsAreGood) {
  const ProfileText files;
  const Profile profile = files
                              .load(
                                  "\xEF\xBB\xBFseed: 3\r\nlora_target_modules: &t [a]  # \xF0\x9F\x99\x82\r\n"
                                  "run_name: caf\xC3\xA9\r\n")
                              .profile;
  EXPECT_EQ(profile.run.seed, 3);
  EXPECT_EQ(profile.run.run_name, "caf\xC3\xA9");
  EXPECT_EQ(profile.adapter.lora_target_modules.names, std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace lora_train
