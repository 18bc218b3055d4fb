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
#include "support/small_checkpoint.h"
#include "support/temporary_folder.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;
using testing_support::SmallCheckpoint;
using testing_support::TemporaryFolder;

fs::path save_step(const fs::path& folder, std::int64_t step) {
  const SmallCheckpoint made(step);
  return save(folder, made.contents());
}

std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  for (const auto& path : paths) names.push_back(path.filename().string());
  return names;
}

std::vector<std::string> names_in(const fs::path& folder) { return names_of(list(folder)); }

TEST(Checkpoint, BringsBackEveryBit) {
  const TemporaryFolder folder;
  const SmallCheckpoint made(7);
  Contents contents = made.contents();
  contents.state.tokens = 1234567890123;
  contents.state.best_eval_loss = 0.1 + 0.2;
  contents.state.eval_step = 6;
  contents.state.loss_sum = 1.0 / 3.0;
  contents.state.loss_weight = 77.5;
  contents.state.started_at = 1234567890;
  contents.state.total_loss_sum = 2.0 / 3.0;
  contents.state.total_loss_weight = 99;
  contents.state.times = report::RunTimes::of({{"load", 1.0 / 7.0}, {"train", 60}}, 0.3, {12.5, {}, 40, 1.0 / 3});
  contents.state.peak_memory_gib = 12.25;
  contents.world_size = 4;
  contents.state.global_batch_size = 12;
  const fs::path path = save(folder.path(), contents);
  EXPECT_EQ(path.filename(), "checkpoint-7");
  EXPECT_EQ(verify(path), "");
  const Description found = describe(path);
  EXPECT_EQ(found.state.step, 7);
  EXPECT_EQ(found.state.tokens, 1234567890123);
  EXPECT_EQ(found.state.best_eval_loss, 0.1 + 0.2);
  EXPECT_FALSE(found.state.eval_loss.has_value());
  EXPECT_EQ(found.state.eval_step, 6);
  EXPECT_EQ(found.state.loss_sum, 1.0 / 3.0);
  EXPECT_EQ(found.state.loss_weight, 77.5);
  EXPECT_EQ(found.state.started_at, 1234567890);
  EXPECT_EQ(found.state.total_loss_sum, 2.0 / 3.0);
  EXPECT_EQ(found.state.total_loss_weight, 99);
  EXPECT_EQ(found.state.times.seconds, contents.state.times.seconds);
  EXPECT_EQ(found.state.times.cost_usd, 0.3);
  EXPECT_EQ(found.state.times.usage.cpu_s, 12.5);
  EXPECT_FALSE(found.state.times.usage.energy_wh);
  EXPECT_EQ(found.state.times.usage.gpu_watched_s, 40);
  EXPECT_EQ(found.state.times.usage.gpu_busy_s, 1.0 / 3);
  EXPECT_EQ(found.state.peak_memory_gib, 12.25);
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.state.global_batch_size, 12);
  EXPECT_EQ(found.fingerprints, contents.fingerprints);
  const storage::SafetensorsFile file(MappedFile::read(path / "adapter_model.safetensors"));
  EXPECT_EQ(file.bytes(*file.find("lora_B")), made.bytes());
  EXPECT_EQ(read_file(path / storage::kProfileFile), "model: some-model\n");
}

TEST(Checkpoint, KeepsWhatWasChosenByMeasuring) {
  const TemporaryFolder folder;
  const SmallCheckpoint small(1);  // the contents point into it
  Contents contents = small.contents();
  EXPECT_EQ(describe(save(folder.path(), contents)).state.tuning, "") << "as in checkpoints of before";
  contents.state.tuning = R"({"choices":{"gemm":{"choice":"0a","ms":0.3333333333333333}},"gpu":"H200"})";
  contents.state.loss_chunk_rows = 882;
  const TrainState state = describe(save(folder.path(), contents)).state;
  EXPECT_EQ(state.tuning, contents.state.tuning);
  EXPECT_EQ(state.loss_chunk_rows, 882);
}

TEST(Checkpoint, EveryFileIsVouchedFor) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
  std::size_t num_files = 0;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string bytes = read_file(entry.path());
    const std::string name = entry.path().filename().string();
    ++num_files;
    write_file_atomic(entry.path(), bytes.substr(0, bytes.size() - 1));
    EXPECT_NE(verify(path).find(name), std::string::npos) << name << ": " << verify(path);
    std::string flipped = bytes;
    flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
    write_file_atomic(entry.path(), flipped);
    EXPECT_NE(verify(path).find(name), std::string::npos) << name << ": " << verify(path);
    fs::remove(entry.path());
    EXPECT_NE(verify(path).find(name), std::string::npos) << name << ": " << verify(path);
    write_file_atomic(entry.path(), bytes);
    EXPECT_EQ(verify(path), "");
  }
  EXPECT_EQ(num_files, 6u);
}

TEST(Checkpoint, WhatIsNoFileIsAProblemAndNotWaitedFor) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
  for (const char* name : {"optimizer.safetensors", "manifest.json"}) {
    fs::rename(path / name, path / "aside");
    ASSERT_EQ(::mkfifo((path / name).c_str(), 0644), 0);
    EXPECT_NE(verify(path).find("not a file"), std::string::npos) << verify(path);
    fs::remove(path / name);
    fs::create_symlink("aside", path / name);
    EXPECT_NE(verify(path).find("not a file"), std::string::npos) << verify(path);
    fs::remove(path / name);
    fs::rename(path / "aside", path / name);
  }
}

TEST(Checkpoint, AManifestThatLeadsElsewhereIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
  for (const std::string& name : {std::string("../secret"), std::string("/etc/passwd"), std::string("-rf"),
                                  std::string(".hidden"), std::string("a\nb"), std::string("a\0b", 3), std::string()}) {
    Manifest manifest = parse_manifest(read_file(path / storage::kManifestFile), "m");
    manifest.files[name] = {1, "0"};
    write_file_atomic(path / storage::kManifestFile, to_json(manifest));
    EXPECT_NE(verify(path).find("names the file"), std::string::npos) << name << ": " << verify(path);
    manifest.files.erase(name);
    write_file_atomic(path / storage::kManifestFile, to_json(manifest));
    EXPECT_EQ(verify(path), "");
  }
}

TEST(Checkpoint, AManifestWithoutWhatIsNeededIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
  const Manifest whole = parse_manifest(read_file(path / storage::kManifestFile), "m");
  for (const char* name : {"trainer_state.json", "profile.yaml", "optimizer.safetensors"}) {
    Manifest manifest = whole;
    manifest.files.erase(name);
    write_file_atomic(path / storage::kManifestFile, to_json(manifest));
    EXPECT_NE(verify(path).find("does not list " + std::string(name)), std::string::npos) << verify(path);
  }
  Manifest other_step = whole;
  other_step.step = 2;
  write_file_atomic(path / storage::kManifestFile, to_json(other_step));
  EXPECT_NE(verify(path).find("a different step"), std::string::npos) << verify(path);
}

TEST(Checkpoint, AManifestThatIsNoneOrWasEditedIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
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
    EXPECT_NE(verify(path).find(message), std::string::npos) << text.substr(0, 200) << "\n"
                                                             << verify(path).substr(0, 1000);
  }
}

TEST(Checkpoint, WhatIsWrongWithAFileIsSaid) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1), other = save_step(folder.path(), 2);
  const auto expect = [&](const char* name, const std::string& bytes, const char* message) {
    const std::string good = read_file(path / name);
    write_file_atomic(path / name, bytes);
    EXPECT_TRUE(verify(path).starts_with(name)) << verify(path);
    EXPECT_NE(verify(path).find(message), std::string::npos) << verify(path);
    write_file_atomic(path / name, good);
  };
  std::string optimizer = read_file(path / storage::kOptimizerFile);
  optimizer.back() = static_cast<char>(optimizer.back() ^ 1);
  expect(storage::kOptimizerFile, optimizer, "does not match its hash in the manifest");
  expect(storage::kOptimizerFile, "", "has 0 bytes, but the manifest says");
  expect(storage::kStateFile, read_file(other / storage::kStateFile), "manifest");
  expect(storage::kAdapterConfigFile, "{\"r\": 8}\n", "does not match its hash in the manifest");
  fs::remove(path / storage::kProfileFile);
  EXPECT_NE(verify(path).find("profile.yaml: is missing or not a file"), std::string::npos) << verify(path);
}

TEST(Checkpoint, APlaceWithoutAManifestIsNoCheckpoint) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "empty");
  write_file_atomic(folder / "file", "checkpoint");
  for (const char* name : {"empty", "file", "nothing"}) {
    EXPECT_NE(verify(folder / name).find("manifest.json: is missing"), std::string::npos)
        << name << verify(folder / name);
  }
}

// Found by the fuzz target `manifest`: printing a value is recursive, and get<>() makes some integer of any number.
TEST(Checkpoint, ANestedManifestIsRefused) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THROW(parse_manifest("{\"version\": " + deep + "}", "m"), FormatError);
}

TEST(Checkpoint, AStateThatIsNoneIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
  const std::string whole = read_file(path / storage::kStateFile);
  for (const std::string tokens : {"1e30", "1.5", "true", "-1", "9223372036854775808", "[[[[]]]]", "\"1\""}) {
    std::string text = whole;
    const std::string key = "\"tokens\": ";
    text.replace(text.find(key), key.size() + 4, key + tokens);
    write_file_atomic(path / storage::kStateFile, text);
    Manifest manifest = parse_manifest(read_file(path / storage::kManifestFile), "m");
    manifest.files[storage::kStateFile] = hash_file(path / storage::kStateFile);
    write_file_atomic(path / storage::kManifestFile, to_json(manifest));
    EXPECT_NE(verify(path).find("expected a whole number, 0 or more"), std::string::npos)
        << tokens << ": " << verify(path);
  }
}

// Found by the fuzz target `manifest`: JSON text cannot hold it.
TEST(Checkpoint, AStateThatIsNoUtf8IsRefused) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 1);
  write_file_atomic(path / storage::kStateFile, "{\"step\": \"\xff\"}");
  EXPECT_THROW(describe(path), FormatError);
}

TEST(Checkpoint, TheNewestThatVerifiesIsTaken) {
  const TemporaryFolder folder;
  EXPECT_EQ(newest_good(folder.path()), std::nullopt);
  for (const std::int64_t step : {2, 10, 9}) save_step(folder.path(), step);
  EXPECT_EQ(newest_good(folder.path())->filename(), "checkpoint-10");
  fs::remove(folder / "checkpoint-10" / storage::kManifestFile);
  EXPECT_EQ(newest_good(folder.path())->filename(), "checkpoint-9");
}

TEST(Checkpoint, ListsNewestFirstAndRotatesTheOldest) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {2, 10, 9}) save_step(folder.path(), step);
  for (const char* other : {"checkpoint-x", "checkpoint-", "checkpoint--3", "checkpoint-7b"})
    fs::create_directory(folder / other);
  rotate(folder.path(), 10, 2, std::nullopt);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"checkpoint-10", "checkpoint-9"}));
  EXPECT_TRUE(fs::exists(folder / "checkpoint-7b"));
}

TEST(Checkpoint, FoldersOfOtherToolsAreLeftAlone) {
  const TemporaryFolder folder;
  const auto of_another = folder / "checkpoint-2";
  std::filesystem::create_directory(of_another);
  write_file_atomic(of_another / "trainer_state.json", R"({"global_step": 2, "log_history": [], "max_steps": 9})");
  write_file_atomic(folder / "checkpoint-5", "a file");
  for (const std::int64_t step : {1, 3, 4}) save_step(folder.path(), step);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"checkpoint-4", "checkpoint-3", "checkpoint-1"}));
  EXPECT_EQ(names_of(list_others(folder.path())), (std::vector<std::string>{"checkpoint-5", "checkpoint-2"}));
  EXPECT_THROW(save_step(folder.path(), 2), IoError);
  EXPECT_THROW(save_step(folder.path(), 5), IoError);
  rotate(folder.path(), 4, 1, std::nullopt);
  delete_after(folder.path(), 0);
  EXPECT_TRUE(list(folder.path()).empty());
  EXPECT_TRUE(std::filesystem::exists(of_another / "trainer_state.json"));
  EXPECT_EQ(read_file(folder / "checkpoint-5"), "a file");
}

TEST(Checkpoint, FilesOfOthersSurviveRotationAndReplacement) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3}) {
    const auto path = save_step(folder.path(), step);
    std::filesystem::create_directory(path / "evals");
    write_file_atomic(path / "evals" / "mmlu.txt", std::to_string(step));
    write_file_atomic(path / "README.md", "mine");
  }
  save_step(folder.path(), 3);
  rotate(folder.path(), 3, 1, std::nullopt);
  EXPECT_EQ(verify(folder / "checkpoint-3"), "");
  for (const std::int64_t step : {1, 2, 3}) {
    const auto path = folder / ("checkpoint-" + std::to_string(step));
    EXPECT_EQ(read_file(path / "evals" / "mmlu.txt"), std::to_string(step));
    EXPECT_EQ(read_file(path / "README.md"), "mine");
    EXPECT_EQ(std::filesystem::exists(path / storage::kOptimizerFile), step == 3);
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"checkpoint-3"});
}

TEST(Checkpoint, ADamagedOneIsStillOurs) {
  const TemporaryFolder folder;
  const auto path = save_step(folder.path(), 3);
  const std::string manifest = read_file(path / storage::kManifestFile), state = read_file(path / storage::kStateFile);
  for (const auto& [a, b] :
       {std::pair{manifest.substr(0, 5), state}, {std::string(), state}, {manifest, std::string()}}) {
    write_file_atomic(path / storage::kManifestFile, a);
    write_file_atomic(path / storage::kStateFile, b);
    EXPECT_EQ(list(folder.path()).size(), 1U);
    EXPECT_NE(verify(path), "");
  }
  std::filesystem::remove(path / storage::kManifestFile);
  std::filesystem::remove(path / storage::kStateFile);
  EXPECT_TRUE(list(folder.path()).empty());
}

TEST(Checkpoint, RotationSparesWhatWasJustSavedAndDoesNotCountLaterOnes) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3, 9}) save_step(folder.path(), step);
  rotate(folder.path(), 3, 1, std::nullopt);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"checkpoint-9", "checkpoint-3"}));
}

TEST(Checkpoint, ACopyUnderAnotherNameIsPassedOver) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2}) save_step(folder.path(), step);
  fs::copy(folder / "checkpoint-1", folder / "checkpoint-900");
  EXPECT_EQ(newest_good(folder.path())->filename(), "checkpoint-2");
}

TEST(Checkpoint, AStopIsSeenWhileCheckpointsAreRead) {
  const TemporaryFolder folder;
  save_step(folder.path(), 1);
  const StopRequests requests;
  set_max_time(0);
  EXPECT_THROW(newest_good(folder.path()), StopError);
  save_step(folder.path(), 2);  // what a stop asks for must not be stopped by it
  EXPECT_EQ(verify(folder / "checkpoint-2"), "");
}

TEST(Checkpoint, ALogThatIsGoneIsNoReasonNotToSave) {
  const TemporaryFolder folder;
  const SmallCheckpoint made(1);
  save(folder.path(), made.contents(), {folder / "no-such-log"});
  EXPECT_EQ(verify(folder / "checkpoint-1"), "");
}

TEST(Checkpoint, RotationSparesTheBest) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3, 4}) save_step(folder.path(), step);
  rotate(folder.path(), 4, 1, 2);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"checkpoint-4", "checkpoint-2"}));
}

TEST(Checkpoint, AnotherFutureIsDeleted) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3}) save_step(folder.path(), step);
  delete_after(folder.path(), 2);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"checkpoint-2", "checkpoint-1"}));
}

TEST(Checkpoint, OneOfTheSameStepIsReplacedWhole) {
  const TemporaryFolder folder;
  const fs::path path = save_step(folder.path(), 3);
  write_file_atomic(path / "model.safetensors", "old");
  save_step(folder.path(), 3);
  EXPECT_FALSE(fs::exists(path / "model.safetensors"));
  EXPECT_EQ(verify(path), "");
}

}  // namespace
}  // namespace lora_train::run_folder
