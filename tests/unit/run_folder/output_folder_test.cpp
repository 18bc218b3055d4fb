#include "lora_train/run_folder/output_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/config/load.h"
#include "lora_train/storage/run_marker.h"
#include "lora_train/storage/run_names.h"
#include "support/expect_parts.h"
#include "support/expect_refused.h"
#include "support/refusal.h"
#include "support/small_checkpoint.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;
using testing_support::expect_parts;

/// A command that asks for a folder. Each call of a function that takes an OutputRequest sees a copy of the profile.
struct Asked {
  Profile profile;
  std::vector<std::string> allow_changed = {};
  bool overwrite = false;
  Profile decided = {};  ///< that copy, as the last call left it

  explicit Asked(const fs::path& folder) {
    profile.model.path = std::string("some-model");
    profile.data.datasets.emplace_back().path = std::string("rows.jsonl");
    profile.run.output_dir = folder.string();
  }
  operator OutputRequest() { return {decided = profile, allow_changed, overwrite}; }
};

/// The run that `request` asks for, with a checkpoint of this step; none where it is 0.
void put_run(const Asked& request, std::int64_t step) {
  const fs::path folder = request.profile.run.output_dir;
  fs::create_directories(folder);
  if (!storage::read_marker(folder)) storage::write_new_marker(folder, request.overwrite);
  write_file_atomic(folder / "run.log", "");
  write_file_atomic(folder / "profile.yaml", to_yaml(request.profile));
  write_file_atomic(folder / "metrics.jsonl", "");
  if (step == 0) return;
  const testing_support::SmallCheckpoint made(step);
  Contents contents = made.contents();
  contents.profile_yaml = to_yaml(request.profile);
  save(folder, contents);
}

/// What the ConfigError says that the request ends with.
std::string refusal(const OutputRequest& request) {
  try {
    prepare_output_folder(request);
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "accepted";
}

class OutputFolder : public testing::Test {
 protected:
  /// A file, and the folders that it is in.
  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    write_file_atomic(folder_ / name, text);
  }
  std::string read(const fs::path& name) const { return read_file(folder_ / name); }
  bool has(const fs::path& name) const { return fs::exists(folder_ / name); }
  /// Ends the run that is there after step 3.
  void finish() const {
    fs::create_directory(folder_ / "adapter");
    write("summary.json", R"({"status": "done", "step": 3})");
  }

  const testing_support::TemporaryFolder folder_;
  Asked request_{folder_.path()};
};
using ReplacedRun = OutputFolder;

const fs::path kReplaced = storage::kReplacedFolder;

TEST_F(OutputFolder, AnEmptyOneIsANewRunAndOneThatHasARunIsResumedFromItsNewestGoodCheckpoint) {
  const OutputDecision decision = prepare_output_folder(Asked(folder_ / "new"));
  EXPECT_FALSE(decision.checkpoint.has_value());
  EXPECT_TRUE(fs::is_directory(folder_ / "new"));
  put_run(request_, 3);
  put_run(request_, 5);
  write("checkpoint-5/optimizer.safetensors", "torn");
  EXPECT_EQ(prepare_output_folder(request_).checkpoint->filename(), "checkpoint-3");
  EXPECT_TRUE(has("checkpoint-5")) << "it stays until a newer one is saved";
}

TEST_F(OutputFolder, OnlyARunThatNeverSavedIsBegunAnew) {
  put_run(request_, 0);
  write("metrics.jsonl", "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"checkpoint\", \"step\": 1}\n");
  testing_support::expect_refused([&] { prepare_output_folder(request_); }, "",
                                  {"use --overwrite to start over from step 0"});
  write("metrics.jsonl", "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"train\", \"step\": 1}\n");
  EXPECT_FALSE(prepare_output_folder(request_).checkpoint.has_value());
  write("metrics.jsonl", "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"eval\", \"step\": 0}\n");
  request_.profile.optimizer.learning_rate = 1e-3;  // nothing was trained with the old one
  EXPECT_FALSE(prepare_output_folder(request_).checkpoint.has_value());
  put_run(request_, 3);
  write("checkpoint-3/optimizer.safetensors", "torn");
  EXPECT_THROW(prepare_output_folder(request_), FormatError);
}

TEST_F(OutputFolder, AnotherLearningRateIsRefusedUnlessAllowed) {
  put_run(request_, 3);
  request_.profile.optimizer.learning_rate = 1e-3;
  EXPECT_NE(refusal(request_), "accepted");
  request_.allow_changed = {"learning_rate"};
  EXPECT_TRUE(prepare_output_folder(request_).checkpoint.has_value());
  request_.allow_changed.clear();
  request_.profile.optimizer.learning_rate = 2e-4;
  request_.profile.run.logging_steps = 7;
  EXPECT_TRUE(prepare_output_folder(request_).checkpoint.has_value());
}

TEST_F(OutputFolder, ARefusedResumeOffersOnlyWhatHelps) {
  Asked old(folder_ / "run");
  old.profile.schedule.max_steps = 3;
  put_run(old, 3);
  const std::string start = "holds a run with a different profile:\n",
                    choose = "\nChoose one:\n  keep the old values\n";
  const std::string here = choose +
                           "  --output-dir OTHER  starts a new run elsewhere\n  --overwrite  deletes the run in " +
                           (folder_ / "run").string();
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
  Asked forced = change(3, 8, 42);
  forced.allow_changed = {"lora_r", "learning_rate"};
  expect_parts(refusal(forced), {"--allow-changed does not help"});
  Asked shorter = old;
  shorter.profile.schedule.max_steps = 2;
  EXPECT_EQ(refusal(shorter), start + steps + here);

  Asked elsewhere = change(3, 16, 42);
  const std::string checkpoint = folder_ / "run/checkpoint-3";
  elsewhere.profile.run.output_dir = folder_ / "new";
  elsewhere.profile.run.resume_from_checkpoint = checkpoint;
  EXPECT_EQ(refusal(elsewhere), start + rate + choose + "  init_adapter=" + checkpoint +
                                    "  starts from its adapter, without --resume\n"
                                    "  --allow-changed learning_rate  continues with the changes");
}

TEST_F(OutputFolder, WhatTheRunReadsMayNotLieWhereItWrites) {
  for (const fs::path name : {"model", "adapter", "checkpoint-3", "tensorboard/deep"}) write(name / "weights", "mine");
  storage::write_new_marker(folder_.path(), false);
  fs::create_directory_symlink(folder_ / "model", folder_ / "link");
  const auto refuse = [&](const char* key, const std::string& path, bool overwrite) {
    Asked request(folder_.path());
    (key == std::string("model") ? request.profile.model.path : request.profile.adapter.init_adapter) = path;
    request.overwrite = overwrite;
    testing_support::expect_refused([&] { prepare_output_folder(request); }, key, {}, ExitCode::kUsage);
  };
  for (const bool overwrite : {false, true}) {
    refuse("model", folder_ / "model", overwrite);
    refuse("model", (folder_ / "model").string() + "/", overwrite);
    refuse("model", folder_ / "link", overwrite);
    refuse("init_adapter", folder_ / "adapter", overwrite);
    refuse("init_adapter", folder_ / "checkpoint-3", overwrite);
    refuse("model", folder_ / "tensorboard/deep", overwrite);
  }
  EXPECT_EQ(read("model/weights"), "mine");
  EXPECT_EQ(read("adapter/weights"), "mine");
  Asked beside(folder_ / "run");
  beside.profile.model.path = folder_ / "model";
  EXPECT_NO_THROW(prepare_output_folder(beside));
}

TEST_F(OutputFolder, FilesOfOthersAreNeitherDeletedNorReplaced) {
  for (const fs::path name : {"adapter", "tensorboard", storage::kReplacedFolder}) {
    Asked request(folder_ / ("with-" + name.string()));
    const fs::path folder = request.profile.run.output_dir, file = folder / name / "weights";
    write(file, "mine");
    for (const bool overwrite : {false, true}) {
      request.overwrite = overwrite;
      EXPECT_THROW(prepare_output_folder(request), ConfigError) << name;
    }
    set_run_aside(folder);
    EXPECT_EQ(read(file), "mine");
  }
  put_run(request_, 3);
  fs::create_directory(folder_ / "model");
  EXPECT_NO_THROW(prepare_output_folder(request_));
  request_.profile.adapter.kind = AdapterKind::kNone;
  request_.overwrite = true;
  EXPECT_THROW(prepare_output_folder(request_), ConfigError);
}

TEST_F(OutputFolder, ACheckpointToGoOnFromIsNotOverwritten) {
  put_run(request_, 3);
  request_.profile.run.resume_from_checkpoint = folder_ / "checkpoint-3";
  request_.overwrite = true;
  EXPECT_THROW(prepare_output_folder(request_), ConfigError);
  EXPECT_EQ(verify(folder_ / "checkpoint-3"), "");
  request_.overwrite = false;
  EXPECT_EQ(prepare_output_folder(request_).checkpoint->filename(), "checkpoint-3");
}

TEST_F(OutputFolder, ACheckpointOfElsewhereIsComparedTooAndLeftForOnesOwn) {
  put_run(Asked(folder_ / "old"), 3);
  Asked request(folder_ / "new");
  request.profile.run.resume_from_checkpoint = folder_ / "old/checkpoint-3";
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
  request.profile.adapter.lora_alpha = 7;
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
  fs::rename(folder_ / "old/checkpoint-3", folder_ / "moved");
  request.profile.run.resume_from_checkpoint = folder_ / "moved";
  EXPECT_THROW(prepare_output_folder(request), ConfigError);
  request.allow_changed = {"lora_alpha"};
  EXPECT_TRUE(prepare_output_folder(request).checkpoint.has_value());
  put_run(request, 5);
  for (const bool is_gone : {false, true}) {
    if (is_gone) fs::remove_all(folder_ / "moved");
    const OutputDecision decision = prepare_output_folder(request);
    EXPECT_EQ(decision.checkpoint, folder_ / "new/checkpoint-5");
    EXPECT_FALSE(decision.goes_back);
  }
  fs::create_directory(folder_ / "new/adapter");
  write("new/summary.json", R"({"status": "done", "step": 5})");
  EXPECT_TRUE(prepare_output_folder(request).is_complete);
}

TEST_F(OutputFolder, GoingBackDeletesLaterCheckpointsOnlyWhenAllowed) {
  for (const std::int64_t step : {2, 4, 6}) put_run(request_, step);
  request_.profile.run.resume_from_checkpoint = folder_ / "checkpoint-2";
  EXPECT_EQ(refusal(request_),
            "resuming from step 2 would delete the later checkpoints, up to " + (folder_ / "checkpoint-6").string() +
                ". To keep them, use another --output-dir, or leave out --resume to continue from the "
                "newest; to delete them, pass --allow-changed resume_from_checkpoint");
  request_.allow_changed = {"resume_from_checkpoint"};
  const OutputDecision decision = prepare_output_folder(request_);
  EXPECT_EQ(decision.checkpoint, folder_ / "checkpoint-2");
  EXPECT_TRUE(decision.goes_back);
  EXPECT_TRUE(has("checkpoint-6")) << "the run is not yet certain to start";
}

TEST_F(OutputFolder, AutoIsTheNumberThatTheRunFound) {
  Asked resolved(folder_.path());
  resolved.profile.data.max_seq_len = 640;
  resolved.profile.schedule.micro_batch_size = 4;
  resolved.profile.run.mlp_tile_tokens = 4096;
  resolved.profile.model.template_date = "2024-02-29";
  put_run(resolved, 3);
  prepare_output_folder(request_);
  EXPECT_EQ(request_.decided.data.max_seq_len, 640);
  EXPECT_EQ(request_.decided.schedule.micro_batch_size, 4);
  EXPECT_EQ(request_.decided.run.mlp_tile_tokens, 4096);
  EXPECT_EQ(request_.decided.model.template_date, "2024-02-29");
  finish();
  EXPECT_TRUE(prepare_output_folder(request_).is_complete);
  Asked other = request_;
  other.profile.data.max_seq_len = 512;
  EXPECT_THROW(prepare_output_folder(other), ConfigError);
  other = request_;
  other.profile.model.template_date = "2024-03-01";
  EXPECT_SAYS(testing_support::refusal<ConfigError>([&] { prepare_output_folder(other); }),
              R"(template_date: "2024-02-29" -> "2024-03-01")");
}

TEST_F(OutputFolder, SweepsWhatADeadProcessLeftHalfWritten) {
  put_run(request_, 3);
  write(".tmp-checkpoint-4-123/optimizer.safetensors", "half");
  write(".tmp-summary.json-123-456", "half");
  write(".tmp-notes", "mine");
  for (const char* replaced : {"NOTES.md", "adapter_config.json"}) write(fs::path(".tmp-adapter-123") / replaced, "x");
  fs::create_directory(folder_ / "adapter");
  write(".tmp-checkpoint-2-1/photo.jpg", "mine");
  prepare_output_folder(request_);
  EXPECT_EQ(read("adapter/NOTES.md"), "x");
  for (const char* name : {".tmp-adapter-123", ".tmp-checkpoint-4-123", ".tmp-summary.json-123-456"})
    EXPECT_FALSE(has(name)) << name;
  for (const char* name : {".tmp-checkpoint-2-1/photo.jpg", ".tmp-notes"}) EXPECT_TRUE(has(name)) << name;

  write("summary.json", R"({"status": "done", "step": 3})");
  write(".tmp-report.html-123-456", "half");  // killed in its last report
  EXPECT_TRUE(prepare_output_folder(request_).is_complete);
  EXPECT_FALSE(has(".tmp-report.html-123-456"));
}

TEST_F(OutputFolder, SweepsTheMarkerThatADeadProcessLeftHalfWritten) {
  for (const char* name : {".tmp-run.json-123-456", ".tmp-summary.json-123-456", ".tmp-adapter-123/weights"})
    write(name, "half");
  prepare_output_folder(request_);
  EXPECT_FALSE(has(".tmp-run.json-123-456"));
  for (const char* name : {".tmp-summary.json-123-456", ".tmp-adapter-123/weights"})  // without a marker: anybody's
    EXPECT_TRUE(has(name)) << name;
}

TEST_F(OutputFolder, AFinishedRunIsComplete) {
  put_run(request_, 3);
  write("summary.json", R"({"status": "done", "step": 3})");
  EXPECT_FALSE(prepare_output_folder(request_).is_complete) << "its adapter is gone: it is written again";
  EXPECT_EQ(prepare_output_folder(request_).checkpoint->filename(), "checkpoint-3");
  fs::create_directory(folder_ / "adapter");
  EXPECT_TRUE(prepare_output_folder(request_).is_complete);
  request_.profile.schedule.num_epochs = 9;
  EXPECT_FALSE(prepare_output_folder(request_).is_complete);
}

TEST_F(OutputFolder, NoFileMakesAFolderARunButItsMarker) {
  for (const char* name : {"profile.yaml", "run.log", "metrics.jsonl", "report.html", "summary.json", "run.json"}) {
    Asked request(folder_ / ("with-" + std::string(name)));
    const fs::path folder = request.profile.run.output_dir;
    write(folder / name, "{\"event\": \"start\", \"step\": 1}\n");
    write(folder / "notes.txt", "mine");
    for (const bool overwrite : {false, true}) {
      request.overwrite = overwrite;
      expect_parts(refusal(request), {"holds " + std::string(name) + ","});
    }
    set_run_aside(folder);
    EXPECT_EQ(read(folder / name), "{\"event\": \"start\", \"step\": 1}\n");
  }
}

TEST_F(OutputFolder, LinksAndPipesUnderARunsNamesAreRefused) {
  for (const char* name : {"profile.yaml", "run.log", "metrics.jsonl", "summary.json", "report.html", "run.json",
                           "tensorboard", storage::kReplacedFolder}) {
    Asked request(folder_ / ("with-" + std::string(name)));
    put_run(request, 3);
    write("mine", "mine");
    const fs::path path = fs::path(request.profile.run.output_dir) / name;
    fs::remove(path);
    fs::create_symlink(folder_ / "mine", path);
    expect_parts(refusal(request), {"holds " + std::string(name) + ","});
    EXPECT_EQ(read("mine"), "mine");
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_parts(refusal(request), {"holds " + std::string(name) + ","});
  }
}

TEST_F(OutputFolder, CheckpointsOfOthersAreNeitherUsedNorMoved) {
  put_run(request_, 3);
  write("checkpoint-9/trainer_state.json", R"({"global_step": 9, "log_history": []})");
  fs::create_directory_symlink(folder_ / "checkpoint-3", folder_ / "checkpoint-7");
  EXPECT_EQ(prepare_output_folder(request_).checkpoint->filename(), "checkpoint-3");
  set_run_aside(folder_.path());
  EXPECT_TRUE(has("checkpoint-9/trainer_state.json"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "checkpoint-7"));
  EXPECT_FALSE(has("checkpoint-3"));
}

TEST_F(OutputFolder, ACommandThatOverwritesResumesTheRunThatItBegan) {
  request_.overwrite = true;
  put_run(request_, 3);
  OutputDecision decision = prepare_output_folder(request_);
  EXPECT_FALSE(decision.overwrites);
  ASSERT_TRUE(decision.checkpoint);
  EXPECT_EQ(decision.checkpoint->filename(), "checkpoint-3");

  Asked other = request_;
  other.profile.optimizer.learning_rate = 1e-3;
  EXPECT_TRUE(prepare_output_folder(other).overwrites) << "another run";
  Asked anew = request_;
  anew.profile.run.resume_from_checkpoint = "none";
  EXPECT_TRUE(prepare_output_folder(anew).overwrites);

  finish();
  EXPECT_TRUE(prepare_output_folder(request_).overwrites) << "it is finished";
}

TEST_F(OutputFolder, OverwriteReplacesARunThatItDidNotBeginAndResumeNoneDoesNot) {
  put_run(request_, 3);
  Asked none = request_;
  none.profile.run.resume_from_checkpoint = "none";
  EXPECT_THROW(prepare_output_folder(none), ConfigError);
  request_.overwrite = true;
  EXPECT_TRUE(prepare_output_folder(request_).overwrites);
  set_run_aside(folder_.path());
  EXPECT_TRUE(storage::read_marker(folder_.path())->began_with_overwrite);
}

TEST_F(ReplacedRun, OverwriteReplacesOnlyWhatARunWrites) {
  put_run(request_, 3);
  write("notes.txt", "mine");
  for (const char* result : {"adapter", "model"}) fs::create_directory(folder_ / result);
  request_.overwrite = true;
  EXPECT_FALSE(prepare_output_folder(request_).checkpoint.has_value());
  EXPECT_TRUE(has("checkpoint-3")) << "deleted before the new run is known to start";
  set_run_aside(folder_.path());
  for (const char* name : {"checkpoint-3", "adapter", "run.log", "profile.yaml", "metrics.jsonl"}) {
    EXPECT_FALSE(has(name)) << name;
    EXPECT_TRUE(has(kReplaced / name)) << name;
  }
  EXPECT_EQ(verify(folder_ / kReplaced / "checkpoint-3"), "");
  delete_replaced_run(folder_.path());
  EXPECT_FALSE(has(kReplaced));
  EXPECT_TRUE(has("model")) << "a run with an adapter writes none";
  EXPECT_EQ(read("notes.txt"), "mine");
}

TEST_F(ReplacedRun, ACommandThatDoesNotOverwriteLeavesTheReplacedRunAlone) {
  put_run(request_, 3);
  set_run_aside(folder_.path());  // and killed before its first checkpoint
  write("metrics.jsonl", "{}\n");
  testing_support::expect_refused([&] { look_at_output_folder(request_); }, "", {"the run it was replacing is in"},
                                  ExitCode::kUsage);
  request_.overwrite = true;
  EXPECT_FALSE(prepare_output_folder(request_).checkpoint.has_value());
  EXPECT_EQ(verify(folder_ / kReplaced / "checkpoint-3"), "");
}

TEST_F(ReplacedRun, IsTheLastOneThatHadSavedSomething) {
  put_run(request_, 3);
  set_run_aside(folder_.path());
  write("run.log", "died early");
  set_run_aside(folder_.path());  // a second attempt: nothing was saved in between
  EXPECT_EQ(verify(folder_ / kReplaced / "checkpoint-3"), "");
  EXPECT_FALSE(has("run.log"));
  put_run(request_, 5);
  set_run_aside(folder_.path());
  EXPECT_FALSE(has(kReplaced / "checkpoint-3"));
  EXPECT_EQ(verify(folder_ / kReplaced / "checkpoint-5"), "");
}

TEST_F(ReplacedRun, WhatOthersPutIntoItsFoldersSurvives) {
  put_run(request_, 3);
  const std::pair<fs::path, fs::path> ours[] = {{"adapter", "adapter_model.safetensors"},
                                                {"tensorboard", "events.out.tfevents.1.host"},
                                                {"checkpoint-3", "profile.yaml"}};
  for (const auto& [name, file] : ours) {
    write(name / ".git/HEAD", "mine");
    write(name / file, "x");
  }
  set_run_aside(folder_.path());
  delete_replaced_run(folder_.path());
  for (const auto& [name, file] : ours) {
    EXPECT_EQ(read(kReplaced / name / ".git/HEAD"), "mine") << "there is no " << name << " yet";
    EXPECT_FALSE(has(kReplaced / name / file));
    fs::create_directory(folder_ / name);
  }
  EXPECT_FALSE(has(kReplaced / "run.json"));
  delete_replaced_run(folder_.path());
  for (const auto& [name, file] : ours) EXPECT_EQ(read(name / ".git/HEAD"), "mine");
  EXPECT_FALSE(has(kReplaced));
}

TEST_F(ReplacedRun, AnInterruptedMoveIsCompleted) {
  for (const std::int64_t step : {3, 5}) put_run(request_, step);
  fs::create_directory(folder_ / kReplaced);
  fs::rename(folder_ / "checkpoint-5", folder_ / kReplaced / "checkpoint-5");
  set_run_aside(folder_.path());
  for (const char* name : {"checkpoint-3", "checkpoint-5", "profile.yaml", "run.json"}) {
    EXPECT_TRUE(has(kReplaced / name)) << name;
  }
}

}  // namespace
}  // namespace lora_train::run_folder
