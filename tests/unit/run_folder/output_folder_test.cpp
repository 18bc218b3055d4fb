#include "lora_train/run_folder/output_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/run_marker.h"
#include "lora_train/storage/run_names.h"
#include "support/temporary_folder.h"
#include "written_run.h"

namespace lora_train::run_folder {
namespace {

using testing_support::TemporaryFolder;

/// What the ConfigError says that the request ends with.
std::string refusal(const OutputRequest& request) {
  try {
    prepare_output_folder(request);
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "accepted";
}

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
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-5")) << "it stays until a newer one is saved";
}

TEST(OutputFolder, NoGoodCheckpointIsNeverASilentStartFromZero) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  put_run(request, 0);
  write_file_atomic(folder / "metrics.jsonl",
                    "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"checkpoint\", \"step\": 1}\n");
  try {
    prepare_output_folder(request);
    ADD_FAILURE() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_NE(error.message().find("use --overwrite to start over from step 0"), std::string::npos) << error.message();
  }
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
  EXPECT_NE(refusal(request), "accepted");
  request.allow_changed = {"learning_rate"};
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
  request.allow_changed.clear();
  request.profile.optimizer.learning_rate = 2e-4;
  request.profile.run.logging_steps = 7;
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
}

TEST(OutputFolder, ARefusedResumeOffersOnlyWhatHelps) {
  const TemporaryFolder folder;
  Asked old = request_for(folder / "run");
  old.profile.schedule.max_steps = 3;
  std::filesystem::create_directory(folder / "run");
  put_run(old, 3);
  const std::string start = "holds a run with a different profile:\n",
                    choose = "\nChoose one:\n  keep the old values\n";
  const std::string here = choose +
                           "  --output-dir OTHER  starts a new run elsewhere\n  --overwrite  deletes the run in " +
                           (folder / "run").string();
  const std::string rate = "  learning_rate: 0.0002 -> 0.0003",
                    steps = "  max_steps: 3 -> 2  (may be raised, not lowered)";
  const auto change = [&](std::int64_t max_steps, std::int64_t rank, std::int64_t seed) {
    Asked request = old;
    request.profile.schedule.max_steps = max_steps;
    request.profile.adapter.lora_r = rank;
    request.profile.optimizer.learning_rate = 3e-4;
    request.profile.run.seed = seed;
    return request;
  };
  EXPECT_EQ(refusal(change(3, 16, 7)),
            start + rate + "\n  seed: 42 -> 7" + here +
                "\n  --allow-changed learning_rate --allow-changed seed  continues with the changes");
  EXPECT_EQ(refusal(change(2, 16, 42)),
            start + steps + "\n" + rate + here + "\n  --allow-changed learning_rate  continues with the changes");
  EXPECT_EQ(refusal(change(3, 8, 42)),
            start + "  lora_r: 16 -> 8  (no checkpoint fits this: --allow-changed does not help)\n" + rate + here);
  Asked shorter = old;
  shorter.profile.schedule.max_steps = 2;
  EXPECT_EQ(refusal(shorter), start + steps + here);

  Asked elsewhere = change(3, 16, 42);
  const std::string checkpoint = folder / "run" / "checkpoint-3";
  elsewhere.profile.run.output_dir = folder / "new";
  elsewhere.profile.run.resume_from_checkpoint = checkpoint;
  EXPECT_EQ(refusal(elsewhere), start + rate + choose + "  init_adapter=" + checkpoint +
                                    "  starts from its adapter, without --resume\n"
                                    "  --allow-changed learning_rate  continues with the changes");
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

TEST(OutputFolder, ARunThatBeganWithANamedCheckpointGoesOnFromItsOwn) {
  const TemporaryFolder folder;
  for (const char* name : {"old", "new"}) std::filesystem::create_directory(folder / name);
  put_run(request_for(folder / "old"), 3);
  Asked request = request_for(folder / "new");
  request.profile.run.resume_from_checkpoint = folder / "old" / "checkpoint-3";
  put_run(request, 5);
  for (const bool is_gone : {false, true}) {
    if (is_gone) std::filesystem::remove_all(folder / "old");
    const OutputDecision decision = prepare_output_folder(request);
    EXPECT_EQ(decision.checkpoint, folder / "new" / "checkpoint-5");
    EXPECT_FALSE(decision.goes_back);
  }
  std::filesystem::create_directory(folder / "new" / "adapter");
  write_file_atomic(folder / "new" / "summary.json", R"({"status": "done", "step": 5})");
  EXPECT_TRUE(prepare_output_folder(request).is_complete);
}

TEST(OutputFolder, GoingBackDeletesLaterCheckpointsOnlyWhenAllowed) {
  const TemporaryFolder folder;
  Asked request = request_for(folder.path());
  for (const std::int64_t step : {2, 4, 6}) put_run(request, step);
  request.profile.run.resume_from_checkpoint = folder / "checkpoint-2";
  EXPECT_EQ(refusal(request),
            "resuming from step 2 would delete the later checkpoints, up to " + (folder / "checkpoint-6").string() +
                ". To keep them, use another --output-dir, or leave out --resume to continue from the "
                "newest; to delete them, pass --allow-changed resume_from_checkpoint");
  request.allow_changed = {"resume_from_checkpoint"};
  const OutputDecision decision = prepare_output_folder(request);
  EXPECT_EQ(decision.checkpoint, folder / "checkpoint-2");
  EXPECT_TRUE(decision.goes_back);
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-6")) << "the run is not yet certain to start";
}

TEST(OutputFolder, NoFlagResumesTensorsOfAnotherShape) {
  const TemporaryFolder folder;
  const Asked old = request_for(folder.path());
  put_run(old, 3);
  Asked request = request_for(folder.path());
  request.profile.adapter.lora_r += 1;
  request.allow_changed = {"lora_r"};
  EXPECT_NE(refusal(request).find("--allow-changed does not help"), std::string::npos);
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
      EXPECT_NE(refusal(request).find(name), std::string::npos) << refusal(request);
    }
    set_run_aside(folder.path());
    EXPECT_EQ(read_file(folder / name), "{\"event\": \"start\", \"step\": 1}\n");
  }
}

TEST(OutputFolder, LinksAndPipesUnderARunsNamesAreRefused) {
  for (const char* name : {"profile.yaml", "run.log", "metrics.jsonl", "summary.json", "report.html", "run.json",
                           "tensorboard", storage::kReplacedFolder}) {
    const TemporaryFolder folder;
    Asked request = request_for(folder / "run");
    std::filesystem::create_directory(folder / "run");
    put_run(request, 3);
    write_file_atomic(folder / "mine", "mine");
    const std::filesystem::path path = folder / "run" / name;
    std::filesystem::remove(path);
    std::filesystem::create_symlink(folder / "mine", path);
    EXPECT_NE(refusal(request).find(name), std::string::npos);
    EXPECT_EQ(read_file(folder / "mine"), "mine");
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_NE(refusal(request).find(name), std::string::npos);
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
