#include "lora_train/run_folder/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/storage/safetensors.h"
#include "manifest.h"
#include "support/refusal.h"
#include "support/small_checkpoint.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;
using testing_support::SmallCheckpoint;

std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  for (const auto& path : paths) names.push_back(path.filename().string());
  return names;
}

class Checkpoint : public testing::Test {
 protected:
  fs::path save_step(std::int64_t step) const {
    const SmallCheckpoint made(step);
    return save(folder_.path(), made.contents());
  }
  void save_steps(std::initializer_list<std::int64_t> steps) const {
    for (const std::int64_t step : steps) save_step(step);
  }
  std::vector<std::string> names() const { return names_of(list(folder_.path())); }

  const testing_support::TemporaryFolder folder_;
};

void expect_problem(const fs::path& checkpoint, const std::string& part) {
  EXPECT_SAYS(verify(checkpoint).substr(0, 1000), part);
}

Manifest manifest_of(const fs::path& checkpoint) {
  return parse_manifest(read_file(checkpoint / storage::kManifestFile), "m");
}

void write_manifest(const fs::path& checkpoint, const Manifest& manifest) {
  write_file_atomic(checkpoint / storage::kManifestFile, to_json(manifest));
}

TEST_F(Checkpoint, BringsBackEveryBit) {
  const SmallCheckpoint made(7);
  Contents contents = made.contents();
  TrainState& state = contents.state;
  state.tokens = 1234567890123;
  state.supervised_tokens = 123456789012;
  state.best_eval_loss = 0.1 + 0.2;
  state.best_metric = 0.7;
  state.best_step = 5;
  state.evals_without_gain = 1;
  state.eval_step = 6;
  state.loss_sum = 1.0 / 3.0;
  state.loss_weight = 77.5;
  state.started_at = 1234567890;
  state.total_loss_sum = 2.0 / 3.0;
  state.total_loss_weight = 99;
  state.times = report::RunTimes::of({{"load", 1.0 / 7.0}, {"train", 60}}, 0.3, {12.5, {}, 40, 1.0 / 3});
  state.peak_memory_gib = 12.25;
  state.global_batch_size = 12;
  state.tuning = R"({"choices":{"gemm":{"choice":"0a","ms":0.3333333333333333}},"gpu":"H200"})";
  state.loss_chunk_rows = 882;
  contents.world_size = 4;
  const fs::path path = save(folder_.path(), contents, {folder_ / "no-such-log"});  // whose absence is no reason
  EXPECT_EQ(path.filename(), "checkpoint-7");
  EXPECT_EQ(verify(path), "");
  const Description found = describe(path);
  const auto counts = [](const TrainState& of) {
    return std::tie(of.step, of.started_at, of.epoch, of.tokens, of.supervised_tokens, of.eval_loss, of.best_eval_loss,
                    of.best_metric, of.best_step, of.evals_without_gain, of.eval_step, of.loss_sum, of.loss_weight,
                    of.total_loss_sum, of.total_loss_weight, of.peak_memory_gib, of.global_batch_size, of.tuning,
                    of.loss_chunk_rows);
  };
  const auto times = [](const report::RunTimes& of) {
    return std::tie(of.seconds, of.cost_usd, of.usage.cpu_s, of.usage.energy_wh, of.usage.gpu_watched_s,
                    of.usage.gpu_busy_s);
  };
  EXPECT_EQ(counts(found.state), counts(state));
  EXPECT_EQ(times(found.state.times), times(state.times));
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.fingerprints, contents.fingerprints);
  const storage::SafetensorsFile file(MappedFile::read(path / "adapter_model.safetensors"));
  EXPECT_EQ(file.bytes(*file.find("lora_B")), made.bytes());
  EXPECT_EQ(read_file(path / storage::kProfileFile), "model: some-model\n");
  EXPECT_EQ(describe(save_step(1)).state.tuning, "") << "nothing was measured";
}

TEST_F(Checkpoint, EveryFileIsVouchedForAndWhatIsWrongWithItIsSaid) {
  const fs::path path = save_step(1);
  const std::vector<std::string> names = list_folder(path);
  EXPECT_EQ(names.size(), 6u);
  for (const std::string& name : names) {
    const bool is_manifest = name == storage::kManifestFile;
    const std::string bytes = read_file(path / name), size = std::to_string(bytes.size() - 1);
    write_file_atomic(path / name, bytes.substr(0, bytes.size() - 1));
    expect_problem(path, name + (is_manifest ? ": " : ": has " + size + " bytes, but the manifest says "));
    for (const std::size_t place : {bytes.size() / 2, bytes.size() - 1}) {
      std::string flipped = bytes;
      flipped[place] = static_cast<char>(flipped[place] ^ 1);
      write_file_atomic(path / name, flipped);
      expect_problem(path, name + (is_manifest ? ": " : ": does not match its hash in the manifest"));
    }
    fs::remove(path / name);
    expect_problem(path, name + (is_manifest ? ": is missing" : ": is missing or not a file"));
    write_file_atomic(path / name, bytes);
    EXPECT_EQ(verify(path), "");
  }
}

TEST_F(Checkpoint, WhatIsNoFileIsAProblemAndNotWaitedFor) {
  const fs::path path = save_step(1);
  for (const char* name : {"optimizer.safetensors", "manifest.json"}) {
    fs::rename(path / name, path / "aside");
    ASSERT_EQ(::mkfifo((path / name).c_str(), 0644), 0);
    expect_problem(path, "not a file");
    fs::remove(path / name);
    fs::create_symlink("aside", path / name);
    expect_problem(path, "not a file");
    fs::remove(path / name);
    fs::rename(path / "aside", path / name);
  }
}

TEST_F(Checkpoint, AManifestThatLeadsElsewhereOrLacksWhatIsNeededIsRefused) {
  const fs::path path = save_step(1);
  const Manifest whole = manifest_of(path);
  for (const auto& name :
       std::vector<std::string>{"../secret", "/etc/passwd", "-rf", ".hidden", "a\nb", {"a\0b", 3}, ""}) {
    Manifest manifest = whole;
    manifest.files[name] = {1, "0"};
    write_manifest(path, manifest);
    expect_problem(path, "names the file");
  }
  write_manifest(path, whole);
  EXPECT_EQ(verify(path), "");
  for (const char* name : {"trainer_state.json", "profile.yaml", "optimizer.safetensors"}) {
    Manifest manifest = whole;
    manifest.files.erase(name);
    write_manifest(path, manifest);
    expect_problem(path, "does not list " + std::string(name));
  }
  Manifest other_step = whole;
  other_step.step = 2;
  write_manifest(path, other_step);
  expect_problem(path, "a different step");
}

TEST_F(Checkpoint, AManifestThatIsMissingNoneOrEditedIsRefused) {
  const fs::path path = save_step(1);
  const std::string good = read_file(path / storage::kManifestFile);
  using nlohmann::json;
  const auto edited = [&](void (*change)(json&)) {
    json manifest = json::parse(good);
    change(manifest);
    return manifest.dump(2) + "\n";
  };
  const char *none = "manifest.json: is not a manifest", *changed = "manifest.json: was changed after it was written";
  const std::pair<std::string, const char*> cases[] = {
      {"", none},
      {good.substr(0, good.size() - 20), none},
      {"<!DOCTYPE html><html><body>404</body></html>", none},
      {"[]", none},
      {"7", none},
      {std::string(200'000, '['), "manifest.json: has values nested deeper than 16 levels"},
      {edited([](json& m) { m["version"] = 1; }), "manifest.json: has version 1; this program reads version 2"},
      {edited([](json& m) { m["version"] = 99; }), "manifest.json: has version 99"},
      {edited([](json& m) { m.erase("version"); }), none},
      {edited([](json& m) { m.erase("files"); }), none},
      {edited([](json& m) { m["files"] = json::array(); }), changed},
      {edited([](json& m) {
         m["files"]["x"] = {{"bytes", "many"}, {"xxh128", "0"}};
       }),
       "manifest.json: bytes is \"many\"; expected a whole number, 0 or more"},
      {edited([](json& m) { m["step"] = 3; }), changed},
      {edited([](json& m) { m["fingerprints"]["data"] = "0"; }), changed},
      {edited([](json& m) { m["files"].erase("optimizer.safetensors"); }), changed},
      {good + "\n", changed},
  };
  for (const auto& [text, message] : cases) {
    write_file_atomic(path / storage::kManifestFile, text);
    expect_problem(path, message);
  }
  // Found by the fuzz target `manifest`: printing a value is recursive.
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THROW(parse_manifest("{\"version\": " + deep + "}", "m"), FormatError);
  fs::create_directory(folder_ / "empty");
  write_file_atomic(folder_ / "file", "checkpoint");
  for (const char* name : {"empty", "file", "nothing"}) expect_problem(folder_ / name, "manifest.json: is missing");
}

TEST_F(Checkpoint, AStateThatIsNoneIsRefused) {
  const fs::path path = save_step(1);
  const std::string whole = read_file(path / storage::kStateFile);
  for (const std::string tokens : {"1e30", "1.5", "true", "-1", "9223372036854775808", "[[[[]]]]", "\"1\""}) {
    std::string text = whole;
    const std::string key = "\"tokens\": ";
    text.replace(text.find(key), key.size() + 4, key + tokens);
    write_file_atomic(path / storage::kStateFile, text);
    Manifest manifest = manifest_of(path);
    manifest.files[storage::kStateFile] = hash_file(path / storage::kStateFile);
    write_manifest(path, manifest);
    expect_problem(path, "expected a whole number, 0 or more");
  }
  // Found by the fuzz target `manifest`: JSON text cannot hold what is no UTF-8.
  write_file_atomic(path / storage::kStateFile, "{\"step\": \"\xff\"}");
  EXPECT_THROW(describe(path), FormatError);
}

TEST_F(Checkpoint, TheNewestThatVerifiesIsTaken) {
  EXPECT_EQ(newest_good(folder_.path()), std::nullopt);
  save_steps({2, 10, 9});
  EXPECT_EQ(newest_good(folder_.path())->filename(), "checkpoint-10");
  fs::remove(folder_ / "checkpoint-10" / storage::kManifestFile);
  EXPECT_EQ(newest_good(folder_.path())->filename(), "checkpoint-9");
  fs::copy(folder_ / "checkpoint-2", folder_ / "checkpoint-900");
  EXPECT_EQ(newest_good(folder_.path())->filename(), "checkpoint-9") << "a copy under another name is passed over";
}

TEST_F(Checkpoint, ListsNewestFirstAndRotatesTheOldest) {
  save_steps({2, 10, 9});
  for (const char* other : {"checkpoint-x", "checkpoint-", "checkpoint--3", "checkpoint-7b"})
    fs::create_directory(folder_ / other);
  rotate(folder_.path(), 10, 2, std::nullopt);
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-10", "checkpoint-9"}));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-7b"));
}

TEST_F(Checkpoint, FoldersOfOtherToolsAreLeftAlone) {
  const auto of_another = folder_ / "checkpoint-2";
  fs::create_directory(of_another);
  write_file_atomic(of_another / "trainer_state.json", R"({"global_step": 2, "log_history": [], "max_steps": 9})");
  write_file_atomic(folder_ / "checkpoint-5", "a file");
  save_steps({1, 3, 4});
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-4", "checkpoint-3", "checkpoint-1"}));
  EXPECT_EQ(names_of(list_others(folder_.path())), (std::vector<std::string>{"checkpoint-5", "checkpoint-2"}));
  EXPECT_THROW(save_step(2), IoError);
  EXPECT_THROW(save_step(5), IoError);
  rotate(folder_.path(), 4, 1, std::nullopt);
  delete_after(folder_.path(), 0);
  EXPECT_TRUE(list(folder_.path()).empty());
  EXPECT_TRUE(fs::exists(of_another / "trainer_state.json"));
  EXPECT_EQ(read_file(folder_ / "checkpoint-5"), "a file");
}

TEST_F(Checkpoint, FilesOfOthersSurviveRotationAndReplacement) {
  for (const std::int64_t step : {1, 2, 3}) {
    const auto path = save_step(step);
    fs::create_directory(path / "evals");
    write_file_atomic(path / "evals" / "mmlu.txt", std::to_string(step));
    write_file_atomic(path / "README.md", "mine");
    write_file_atomic(path / "model.safetensors", "of a run with another adapter");
  }
  save_step(3);
  EXPECT_FALSE(fs::exists(folder_ / "checkpoint-3/model.safetensors")) << "one of the same step is replaced whole";
  rotate(folder_.path(), 3, 1, std::nullopt);
  EXPECT_EQ(verify(folder_ / "checkpoint-3"), "");
  for (const std::int64_t step : {1, 2, 3}) {
    const auto path = folder_ / ("checkpoint-" + std::to_string(step));
    EXPECT_EQ(read_file(path / "evals" / "mmlu.txt"), std::to_string(step));
    EXPECT_EQ(read_file(path / "README.md"), "mine");
    EXPECT_EQ(fs::exists(path / storage::kOptimizerFile), step == 3);
  }
  EXPECT_EQ(names(), std::vector<std::string>{"checkpoint-3"});
}

TEST_F(Checkpoint, ADamagedOneIsStillOurs) {
  const auto path = save_step(3);
  const std::string manifest = read_file(path / storage::kManifestFile), state = read_file(path / storage::kStateFile);
  for (const auto& [a, b] :
       {std::pair{manifest.substr(0, 5), state}, {std::string(), state}, {manifest, std::string()}}) {
    write_file_atomic(path / storage::kManifestFile, a);
    write_file_atomic(path / storage::kStateFile, b);
    EXPECT_EQ(list(folder_.path()).size(), 1U);
    EXPECT_NE(verify(path), "");
  }
  fs::remove(path / storage::kManifestFile);
  fs::remove(path / storage::kStateFile);
  EXPECT_TRUE(list(folder_.path()).empty());
}

TEST_F(Checkpoint, AStopIsSeenWhileCheckpointsAreRead) {
  save_step(1);
  const StopRequests requests;
  set_max_time(0);
  EXPECT_THROW(newest_good(folder_.path()), StopError);
  save_step(2);  // what a stop asks for must not be stopped by it
  EXPECT_EQ(verify(folder_ / "checkpoint-2"), "");
}

TEST_F(Checkpoint, RotationSparesWhatWasJustSavedAndTheBestAndDoesNotCountLaterOnes) {
  save_steps({1, 2, 3, 9});
  rotate(folder_.path(), 3, 1, 2);
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-9", "checkpoint-3", "checkpoint-2"}));
  rotate(folder_.path(), 3, 1, std::nullopt);
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-9", "checkpoint-3"}));
  delete_after(folder_.path(), 3);
  EXPECT_EQ(names(), std::vector<std::string>{"checkpoint-3"}) << "of another future";
}

}  // namespace
}  // namespace lora_train::run_folder
