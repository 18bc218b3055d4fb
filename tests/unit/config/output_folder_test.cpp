#include <gtest/gtest.h>

#include "consistency.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

TEST(OutputFolder, KeysAreReplacedByTheirValues) {
  ProfileText files;
  const auto folder = [&](const std::string& text) { return files.load(text).profile.run.output_dir; };
  EXPECT_EQ(folder("output_dir: \"runs/lr{learning_rate}-r{lora_r}\"\nlr: 2e-4\n"), "runs/lr0.0002-r16");
  EXPECT_EQ(folder("output_dir: \"{precision}/{packing}/{max_steps}\"\n"), "bf16/true/none");
  EXPECT_EQ(folder("output_dir: \"runs/{model}\"\nmodel: Qwen/Qwen3-4B\n"), "runs/Qwen-Qwen3-4B");
  EXPECT_EQ(folder("output_dir: \"runs/{model}\"\nmodel: /models/Qwen3-4B/\n"), "runs/Qwen3-4B");
  EXPECT_EQ(folder("output_dir: runs/plain\n"), "runs/plain");
}

TEST(OutputFolder, SettingsCountInIt) {
  ProfileText files;
  EXPECT_EQ(files.load("output_dir: \"r{lora_r}\"\n", {"lora_r=4"}).profile.run.output_dir, "r4");
}

TEST(OutputFolder, UnknownKeysAndListsAreMistakes) {
  ProfileText files;
  EXPECT_EQ(files.error("seed: 1\noutput_dir: \"r{lora_rr}\"\n"),
            "profile.yaml:2: output_dir: {lora_rr} is not a key. Expected a key with a single value, such as "
            "{learning_rate}. Did "
            "you mean \"lora_r\"?");
  EXPECT_NE(files.error("output_dir: \"{datasets}\"\n").find("{datasets} is a list or a map"), std::string::npos);
  EXPECT_NE(files.error("output_dir: \"{output_dir}\"\n").find("is not a key"), std::string::npos);
  EXPECT_NE(files.error("output_dir: \"r{lora_r\"\n").find("has no closing brace"), std::string::npos);
  // The folder would be another one when the written profile is read again.
  const std::string by_name = "output_dir: \"{run_name}/x\"\nrun_name: ";
  EXPECT_NE(files.error(by_name + "\"a{seed}\"\n").find("a folder name cannot contain a brace"), std::string::npos);
  EXPECT_NE(files.error(by_name + "\"~\"\n").find("leads to another folder"), std::string::npos);
}

}  // namespace
}  // namespace lora_train
