#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/run_names.h"
#include "support/temporary_folder.h"
#include "written_run.h"

namespace lora_train::run_folder {
namespace {

using testing_support::TemporaryFolder;

TEST(ReplacedRun, OverwriteReplacesOnlyWhatARunWrites) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  write_file_atomic(folder / "notes.txt", "mine");
  for (const char* result : {"adapter", "model"}) std::filesystem::create_directory(folder / result);
  request.overwrite = true;
  EXPECT_FALSE(prepare_output_folder(request).checkpoint.has_value());
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-3")) << "deleted before the new run is known to start";
  set_run_aside(folder.path());
  for (const char* name : {"checkpoint-3", "adapter", "run.log", "profile.yaml", "metrics.jsonl"}) {
    EXPECT_FALSE(std::filesystem::exists(folder / name)) << name;
    EXPECT_TRUE(std::filesystem::exists(folder / storage::kReplacedFolder / name)) << name;
  }
  EXPECT_EQ(verify(folder / storage::kReplacedFolder / "checkpoint-3"), "");
  delete_replaced_run(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / storage::kReplacedFolder));
  EXPECT_TRUE(std::filesystem::exists(folder / "model")) << "a run with an adapter writes none";
  EXPECT_EQ(read_file(folder / "notes.txt"), "mine");
}

TEST(ReplacedRun, ACommandThatDoesNotOverwriteLeavesTheReplacedRunAlone) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  set_run_aside(folder.path());  // and killed before its first checkpoint
  write_file_atomic(folder / "metrics.jsonl", "{}\n");
  try {
    look_at_output_folder(request);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("the run it was replacing is in"), std::string::npos) << error.what();
  }
  request.overwrite = true;
  EXPECT_FALSE(prepare_output_folder(request).checkpoint.has_value());
  EXPECT_EQ(verify(folder / storage::kReplacedFolder / "checkpoint-3"), "");
}

TEST(ReplacedRun, IsTheLastOneThatHadSavedSomething) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  set_run_aside(folder.path());
  write_file_atomic(folder / "run.log", "died early");
  set_run_aside(folder.path());  // a second attempt: nothing was saved in between
  EXPECT_EQ(verify(folder / storage::kReplacedFolder / "checkpoint-3"), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "run.log"));
  put_run(request, 5);
  set_run_aside(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / storage::kReplacedFolder / "checkpoint-3"));
  EXPECT_EQ(verify(folder / storage::kReplacedFolder / "checkpoint-5"), "");
}

TEST(ReplacedRun, WhatOthersPutIntoItsFoldersSurvives) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  const std::pair<std::string, std::string> ours[] = {{"adapter", "adapter_model.safetensors"},
                                                      {"tensorboard", "events.out.tfevents.1.host"},
                                                      {"checkpoint-3", "profile.yaml"}};
  for (const auto& [name, file] : ours) {
    std::filesystem::create_directories(folder / name / ".git");
    write_file_atomic(folder / name / ".git" / "HEAD", "mine");
    write_file_atomic(folder / name / file, "x");
  }
  set_run_aside(folder.path());
  delete_replaced_run(folder.path());
  const auto kept = folder / storage::kReplacedFolder;
  for (const auto& [name, file] : ours) {
    EXPECT_EQ(read_file(kept / name / ".git" / "HEAD"), "mine") << "there is no " << name << " yet";
    EXPECT_FALSE(std::filesystem::exists(kept / name / file));
    std::filesystem::create_directory(folder / name);
  }
  EXPECT_FALSE(std::filesystem::exists(kept / "run.json"));
  delete_replaced_run(folder.path());
  for (const auto& [name, file] : ours) EXPECT_EQ(read_file(folder / name / ".git" / "HEAD"), "mine");
  EXPECT_FALSE(std::filesystem::exists(kept));
}

TEST(ReplacedRun, AnInterruptedMoveIsCompleted) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  put_run(request, 5);
  std::filesystem::create_directory(folder / storage::kReplacedFolder);
  std::filesystem::rename(folder / "checkpoint-5", folder / storage::kReplacedFolder / "checkpoint-5");
  set_run_aside(folder.path());
  for (const char* name : {"checkpoint-3", "checkpoint-5", "profile.yaml", "run.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / storage::kReplacedFolder / name)) << name;
  }
}

}  // namespace
}  // namespace lora_train::run_folder
