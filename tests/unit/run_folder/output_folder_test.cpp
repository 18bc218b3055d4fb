#include "lora_train/run_folder/output_folder.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/run_marker.h"
#include "lora_train/storage/run_names.h"
#include "support/temporary_folder.h"
#include "written_run.h"

namespace lora_train::run_folder {
namespace {

using testing_support::TemporaryFolder;

TEST(OutputFolder, AnEmptyOneIsANewRun) {
  const TemporaryFolder folder;
  const OutputDecision decision = prepare_output_folder(request_for(folder / "new"));
  EXPECT_FALSE(decision.checkpoint.has_value());
  EXPECT_TRUE(std::filesystem::is_directory(folder / "new"));
}

TEST(OutputFolder, ResumesFromTheNewestGoodCheckpoint) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  put_run(request, 5);
  write_file_atomic(folder / "checkpoint-5" / "optimizer.safetensors", "torn");
  EXPECT_EQ(prepare_output_folder(request).checkpoint->filename(), "checkpoint-3");
}

TEST(OutputFolder, NoGoodCheckpointIsNeverASilentStartFromZero) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 0);
  write_file_atomic(folder / "metrics.jsonl",
                    "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"checkpoint\", \"step\": 1}\n");
  EXPECT_THROW(prepare_output_folder(request), FormatError);
}

TEST(OutputFolder, ARunThatWasKilledBeforeItsFirstCheckpointIsBegunAnew) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 0);
  write_file_atomic(folder / "metrics.jsonl",
                    "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"train\", \"step\": 1}\n");
  EXPECT_FALSE(prepare_output_folder(request).checkpoint.has_value());
}

TEST(OutputFolder, ARunThatFinishedNoStepIsBegunAnew) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 0);
  write_file_atomic(folder / "metrics.jsonl",
                    "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"eval\", \"step\": 0}\n");
  request.profile.optimizer.learning_rate = 1e-3;  // nothing was trained with the old one
  EXPECT_FALSE(prepare_output_folder(request).checkpoint.has_value());
  put_run(request, 3);
  write_file_atomic(folder / "checkpoint-3" / "optimizer.safetensors", "torn");
  EXPECT_THROW(prepare_output_folder(request), FormatError);
}

TEST(OutputFolder, AnotherLearningRateIsRefusedUnlessAllowed) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  request.profile.optimizer.learning_rate = 1e-3;
  try {
    prepare_output_folder(request);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("learning_rate: "), std::string::npos);
    EXPECT_NE(error.message().find("--allow-changed"), std::string::npos);
  }
  request.allow_changed = {"learning_rate"};
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
  request.allow_changed.clear();
  request.profile.optimizer.learning_rate = 2e-4;
  request.profile.run.logging_steps = 7;
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
}

TEST(OutputFolder, WhatTheRunReadsMayNotLieWhereItWrites) {
  const TemporaryFolder folder;
  for (const char* name : {"model", "adapter", "checkpoint-3", "tensorboard/deep"}) {
    std::filesystem::create_directories(folder / name);
    write_file_atomic(folder / name / "weights", "mine");
  }
  storage::write_new_marker(folder.path(), false);
  std::filesystem::create_directory_symlink(folder / "model", folder / "link");
  const auto refuse = [&](const char* key, const std::string& path, bool overwrite) {
    Asked request = request_for(folder.path());
    (key == std::string("model") ? request.profile.model.path : request.profile.adapter.init_adapter) = path;
    request.overwrite = overwrite;
    try {
      prepare_output_folder(request);
      FAIL() << path << " accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.where(), key) << error.what();
    }
  };
  for (const bool overwrite : {false, true}) {
    refuse("model", folder / "model", overwrite);
    refuse("model", (folder / "model").string() + "/", overwrite);
    refuse("model", folder / "link", overwrite);
    refuse("init_adapter", folder / "adapter", overwrite);
    refuse("init_adapter", folder / "checkpoint-3", overwrite);
    refuse("model", folder / "tensorboard/deep", overwrite);
  }
  EXPECT_EQ(read_file(folder / "model" / "weights"), "mine");
  EXPECT_EQ(read_file(folder / "adapter" / "weights"), "mine");
  Asked beside = request_for(folder / "run");
  beside.profile.model.path = folder / "model";
  EXPECT_NO_THROW(prepare_output_folder(beside));
}

TEST(OutputFolder, FilesOfOthersAreNeitherDeletedNorReplaced) {
  for (const char* name : {"adapter", "tensorboard", storage::kReplacedFolder}) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / name);
    write_file_atomic(folder / name / "weights", "mine");
    Asked request = request_for(folder.path());
    EXPECT_THROW(prepare_output_folder(request), ConfigError) << name;
    request.overwrite = true;
    EXPECT_THROW(prepare_output_folder(request), ConfigError) << name;
    set_run_aside(folder.path());
    EXPECT_EQ(read_file(folder / name / "weights"), "mine");
  }
}

TEST(OutputFolder, AResultThatTheRunThereDidNotWriteIsKept) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  std::filesystem::create_directory(folder / "model");
  EXPECT_NO_THROW(prepare_output_folder(request));
  request.profile.adapter.kind = AdapterKind::kNone;
  request.overwrite = true;
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
}

TEST(OutputFolder, ACheckpointToGoOnFromIsNotOverwritten) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  request.profile.run.resume_from_checkpoint = folder / "checkpoint-3";
  request.overwrite = true;
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
  EXPECT_EQ(verify(folder / "checkpoint-3"), "");
  request.overwrite = false;
  EXPECT_EQ(prepare_output_folder(request).checkpoint->filename(), "checkpoint-3");
}

TEST(OutputFolder, ACheckpointOfElsewhereIsComparedToo) {
  const TemporaryFolder folder;
  const Asked old = request_for(folder / "old");
  std::filesystem::create_directory(folder / "old");
  put_run(old, 3);
  Asked request = request_for(folder / "new");
  request.profile.run.resume_from_checkpoint = folder / "old" / "checkpoint-3";
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
  request.profile.adapter.lora_alpha = 7;
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
  std::filesystem::rename(folder / "old" / "checkpoint-3", folder / "moved");
  request.profile.run.resume_from_checkpoint = folder / "moved";
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
  request.allow_changed = {"lora_alpha"};
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
}

TEST(OutputFolder, NoFlagResumesTensorsOfAnotherShape) {
  const TemporaryFolder folder;
  const Asked old = request_for(folder.path());
  put_run(old, 3);
  Asked request = request_for(folder.path());
  request.profile.adapter.lora_r += 1;
  request.allow_changed = {"lora_r"};
  try {
    prepare_output_folder(request);
    FAIL() << "resumed";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("--allow-changed does not help"), std::string::npos) << error.message();
  }
}

TEST(OutputFolder, AutoIsTheNumberThatTheRunFound) {
  const TemporaryFolder folder;
  Asked resolved = request_for(folder.path());
  resolved.profile.data.max_seq_len = 640;
  resolved.profile.schedule.micro_batch_size = 4;
  resolved.profile.run.mlp_tile_tokens = 4096;
  put_run(resolved, 3);
  Asked request = request_for(folder.path());
  prepare_output_folder(request);
  EXPECT_EQ(request.decided.data.max_seq_len, 640);
  EXPECT_EQ(request.decided.schedule.micro_batch_size, 4);
  EXPECT_EQ(request.decided.run.mlp_tile_tokens, 4096);
  std::filesystem::create_directory(folder / "adapter");
  write_file_atomic(folder / "summary.json", R"({"status": "done", "step": 3})");
  EXPECT_TRUE(prepare_output_folder(request).is_complete);
  Asked other = request;
  other.profile.data.max_seq_len = 512;
  EXPECT_THROW(prepare_output_folder(other), ConfigError);
}

TEST(OutputFolder, SweepsWhatADeadProcessLeftHalfWritten) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  std::filesystem::create_directory(folder / ".tmp-checkpoint-4-123");
  write_file_atomic(folder / ".tmp-checkpoint-4-123" / "optimizer.safetensors", "half");
  write_file_atomic(folder / ".tmp-summary.json-123-456", "half");
  write_file_atomic(folder / ".tmp-notes", "mine");
  std::filesystem::create_directories(folder / ".tmp-adapter-123");  // replaced, when the process was killed
  for (const char* name : {"NOTES.md", "adapter_config.json"})
    write_file_atomic(folder / ".tmp-adapter-123" / name, "x");
  std::filesystem::create_directory(folder / "adapter");
  std::filesystem::create_directory(folder / ".tmp-checkpoint-2-1");
  write_file_atomic(folder / ".tmp-checkpoint-2-1" / "photo.jpg", "mine");
  prepare_output_folder(request);
  EXPECT_EQ(read_file(folder / "adapter" / "NOTES.md"), "x");
  EXPECT_FALSE(std::filesystem::exists(folder / ".tmp-adapter-123"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".tmp-checkpoint-2-1" / "photo.jpg"));
  EXPECT_FALSE(std::filesystem::exists(folder / ".tmp-checkpoint-4-123"));
  EXPECT_FALSE(std::filesystem::exists(folder / ".tmp-summary.json-123-456"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".tmp-notes"));

  write_file_atomic(folder / "summary.json", R"({"status": "done", "step": 3})");
  write_file_atomic(folder / ".tmp-report.html-123-456", "half");  // killed in its last report
  EXPECT_TRUE(prepare_output_folder(request).is_complete);
  EXPECT_FALSE(std::filesystem::exists(folder / ".tmp-report.html-123-456"));
}

TEST(OutputFolder, ResumeNoneNeedsOverwrite) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  request.profile.run.resume_from_checkpoint = "none";
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
}

TEST(OutputFolder, AFinishedRunIsComplete) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  write_file_atomic(folder / "summary.json", R"({"status": "done", "step": 3})");
  EXPECT_FALSE(prepare_output_folder(request).is_complete) << "its adapter is gone: it is written again";
  EXPECT_EQ(prepare_output_folder(request).checkpoint->filename(), "checkpoint-3");
  std::filesystem::create_directory(folder / "adapter");
  EXPECT_TRUE(prepare_output_folder(request).is_complete);
  request.profile.schedule.num_epochs = 9;
  EXPECT_FALSE(prepare_output_folder(request).is_complete);
}

TEST(OutputFolder, NoFileMakesAFolderARunButItsMarker) {
  for (const char* name : {"profile.yaml", "run.log", "metrics.jsonl", "report.html", "summary.json", "run.json"}) {
    const TemporaryFolder folder;
    write_file_atomic(folder / name, "{\"event\": \"start\", \"step\": 1}\n");
    write_file_atomic(folder / "notes.txt", "mine");
    for (const bool overwrite : {false, true}) {
      Asked request = request_for(folder.path());
      request.overwrite = overwrite;
      try {
        prepare_output_folder(request);
        FAIL() << name << " accepted";
      } catch (const ConfigError& error) {
        EXPECT_NE(error.message().find(name), std::string::npos) << error.message();
      }
    }
    set_run_aside(folder.path());
    EXPECT_EQ(read_file(folder / name), "{\"event\": \"start\", \"step\": 1}\n");
  }
}

TEST(OutputFolder, LinksUnderARunsNamesAreRefused) {
  for (const char* name : {"profile.yaml", "run.log", "metrics.jsonl", "summary.json", "run.json", "tensorboard",
                           storage::kReplacedFolder}) {
    const TemporaryFolder folder;
    Asked request = request_for(folder / "run");
    std::filesystem::create_directory(folder / "run");
    put_run(request, 3);
    write_file_atomic(folder / "mine", "mine");
    std::filesystem::remove(folder / "run" / name);
    std::filesystem::create_symlink(folder / "mine", folder / "run" / name);
    EXPECT_THROW(prepare_output_folder(request), ConfigError) << name;
    EXPECT_EQ(read_file(folder / "mine"), "mine");
  }
}

TEST(OutputFolder, CheckpointsOfOthersAreNeitherUsedNorMoved) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  std::filesystem::create_directory(folder / "checkpoint-9");
  write_file_atomic(folder / "checkpoint-9" / "trainer_state.json", R"({"global_step": 9, "log_history": []})");
  std::filesystem::create_directory_symlink(folder / "checkpoint-3", folder / "checkpoint-7");
  EXPECT_EQ(prepare_output_folder(request).checkpoint->filename(), "checkpoint-3");
  set_run_aside(folder.path());
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-9" / "trainer_state.json"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "checkpoint-7"));
  EXPECT_FALSE(std::filesystem::exists(folder / "checkpoint-3"));
}

TEST(OutputFolder, ACommandThatOverwritesResumesTheRunThatItBegan) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  request.overwrite = true;
  put_run(request, 3);
  OutputDecision decision = prepare_output_folder(request);
  EXPECT_FALSE(decision.overwrites);
  ASSERT_TRUE(decision.checkpoint);
  EXPECT_EQ(decision.checkpoint->filename(), "checkpoint-3");

  Asked other = request;
  other.profile.optimizer.learning_rate = 1e-3;
  EXPECT_TRUE(prepare_output_folder(other).overwrites) << "another run";
  Asked anew = request;
  anew.profile.run.resume_from_checkpoint = "none";
  EXPECT_TRUE(prepare_output_folder(anew).overwrites);

  std::filesystem::create_directory(folder / "adapter");
  write_file_atomic(folder / "summary.json", R"({"status": "done", "step": 3})");
  EXPECT_TRUE(prepare_output_folder(request).overwrites) << "it is finished";
}

TEST(OutputFolder, OverwriteReplacesARunThatItDidNotBegin) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 3);
  request.overwrite = true;
  EXPECT_TRUE(prepare_output_folder(request).overwrites);
  set_run_aside(folder.path());
  EXPECT_TRUE(storage::read_marker(folder.path())->began_with_overwrite);
}

}  // namespace
}  // namespace lora_train::run_folder
