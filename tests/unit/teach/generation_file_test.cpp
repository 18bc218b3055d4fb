#include "lora_train/teach/generation_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/file_size_limit.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::teach {
namespace {

using testing_support::write_text;

std::string line(int index, const std::string& prompt) {
  return R"({"index":)" + std::to_string(index) + R"(,"prompt":")" + prompt + R"(","completion":"c"})";
}

class AnswerFile : public testing::Test {
 protected:
  std::string text() const { return read_file(path_); }
  std::string refusal() {
    return testing_support::refusal<ConfigError>([&] { GenerationFile("generate", path_, settings_, prompts_); });
  }

  testing_support::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "out.jsonl";
  GenerationSettings settings_ = {{"model", "\"m\""}, {"temperature", "0"}};
  std::vector<std::string> prompts_ = {"\"a\"", "\"b\"", "\"c\""};
};

TEST_F(AnswerFile, GoesOnWhereItStoppedAndEndsInOrder) {
  {
    GenerationFile file("generate", path_, settings_, prompts_);
    file.append(2, line(2, "c"));
  }
  std::ofstream(path_, std::ios::app) << R"({"index":0,"prom)";  // the process died here
  GenerationFile file("generate", path_, settings_, prompts_);
  EXPECT_EQ(file.num_done(), 1U);
  EXPECT_FALSE(file.is_done(0));
  EXPECT_TRUE(file.is_done(2));
  file.append(1, line(1, "b"));
  file.append(0, line(0, "a"));
  EXPECT_EQ(text(), line(2, "c") + "\n" + line(1, "b") + "\n" + line(0, "a") + "\n");
  file.finish();
  EXPECT_EQ(text(), line(0, "a") + "\n" + line(1, "b") + "\n" + line(2, "c") + "\n");
}

TEST_F(AnswerFile, RefusesOtherSettingsNamingThem) {
  GenerationFile("generate", path_, settings_, prompts_).append(0, line(0, "a"));
  settings_[1].second = "0.7";
  EXPECT_SAYS(refusal(), "temperature: 0 -> 0.7");
  EXPECT_EQ(refusal().find("model:"), std::string::npos) << refusal();
  std::filesystem::remove(path_.string() + ".settings.json");
  EXPECT_SAYS(refusal(), "is missing");
}

TEST_F(AnswerFile, RefusesOtherPromptsAndOtherFiles) {
  GenerationFile("generate", path_, settings_, prompts_).append(1, line(1, "b"));
  prompts_[1] = "\"x\"";
  EXPECT_SAYS(refusal(), "answers prompt 2, but that prompt has changed");
  prompts_.resize(1);
  EXPECT_SAYS(refusal(), "the last prompt is now prompt 1");
  write_text(path_, "{\"messages\": []}\n");
  EXPECT_SAYS(refusal(), "out.jsonl:1: generate did not write this line");
}

TEST_F(AnswerFile, ChangesNothingThatItRefuses) {
  for (const std::string other :
       {"notes without a line end", R"({"lr": 1})", "{\n  \"lr\": 1\n}", "[1]\n{\"index\":0"}) {
    write_text(path_, other);
    const char* said = other.starts_with("[1]") ? "did not write this line" : "was not written by generate";
    EXPECT_SAYS(refusal(), said) << other;
    EXPECT_EQ(text(), other);
  }
  std::filesystem::remove(path_);
  GenerationFile("generate", path_, settings_, prompts_).append(0, line(0, "a"));
  std::ofstream(path_, std::ios::app) << R"({"index":1,"prom)";
  const std::string before = text();
  settings_[1].second = "0.7";
  EXPECT_SAYS(refusal(), "other settings");
  EXPECT_EQ(text(), before);
}

TEST_F(AnswerFile, RefusesASettingsFileOfOthers) {
  const std::string name = path_.string() + ".settings.json";
  for (const std::string other : {"[]", "{\"theme\": \"dark\"}", "no JSON", ""}) {
    std::ofstream(name) << other;
    EXPECT_SAYS(refusal(), "was not written by generate");
    EXPECT_EQ(read_file(name), other);
  }
  std::filesystem::remove(name);
  GenerationFile("generate", path_, settings_, prompts_);
  EXPECT_EQ(refusal(), "accepted") << "it was stopped before its first answer";
}

TEST_F(AnswerFile, TakesPromptsAddedAtTheEndAndIsWrittenByOneProcessAtATime) {
  GenerationFile("generate", path_, settings_, {"\"a\""}).append(0, line(0, "a"));
  const GenerationFile file("generate", path_, settings_, prompts_);
  EXPECT_EQ(file.num_done(), 1U);
  EXPECT_SAYS(refusal(), "another process is writing");
}

TEST_F(AnswerFile, KeepsItsWholeLinesOnAFullDisk) {
  GenerationFile file("generate", path_, settings_, prompts_);
  file.append(0, line(0, "a"));
  {
    const testing_support::FileSizeLimit full(text().size() + 10);  // a part of the next line fits
    EXPECT_THROW(file.append(1, line(1, "b")), IoError);
  }
  EXPECT_EQ(text(), line(0, "a") + "\n");
  EXPECT_FALSE(file.is_done(1));
  file.append(1, line(1, "b"));
  EXPECT_EQ(text(), line(0, "a") + "\n" + line(1, "b") + "\n");
}

}  // namespace
}  // namespace lora_train::teach
