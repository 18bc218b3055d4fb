#include "lora_train/run/background_saver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/storage/safetensors.h"
#include "support/faulty_file_ops.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::run {
namespace {

using testing_support::FaultyFileOps;
using testing_support::ScopedFileOps;
using testing_support::TemporaryFolder;
using testing_support::uniform;

/// Remembers what was synced and renamed.
class RecordingFileOps : public FaultyFileOps {
 public:
  explicit RecordingFileOps(FileOps& below) : FaultyFileOps(below) {}

  /// In order: "open PATH", "sync PATH", "rename TARGET".
  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  /// The place in the log; its size when the entry is not there.
  std::size_t place_of(const std::string& entry) const {
    const std::vector<std::string> all = log();
    return static_cast<std::size_t>(std::find(all.begin(), all.end(), entry) - all.begin());
  }

  int open(const std::string& path, int flags) override {
    const int fd = FaultyFileOps::open(path, flags);
    const std::lock_guard lock(mutex_);
    if (fd >= 0) paths_[fd] = path;
    log_.push_back("open " + path);
    return fd;
  }
  int sync(int fd) override {
    const int result = FaultyFileOps::sync(fd);
    const std::lock_guard lock(mutex_);
    log_.push_back("sync " + paths_[fd]);
    return result;
  }
  int rename(const std::string& from, const std::string& to) override {
    const int result = FaultyFileOps::rename(from, to);
    const std::lock_guard lock(mutex_);
    log_.push_back("rename " + to);
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, std::string> paths_;
  std::vector<std::string> log_;
};

constexpr std::int64_t kEnough = std::numeric_limits<std::int64_t>::max();

/// What a checkpoint holds.
struct Trained {
  explicit Trained(std::vector<model::Parameter> list = {{"model.w", {3, 2}}, {"model.norm", {3}, false}},
                   const optim::Optimizer& row = optim::optimizer_for(OptimizerKind::kAdamwTorch))
      : parameters(std::move(list)), optimizer(row, parameters.blocks(), at::kCPU) {}

  static Trained filled() {
    Trained made;
    made.parameters.values.copy_(uniform({9}, 1));
    for (std::size_t i = 0; i < 2; ++i) made.optimizer.tensors[i].copy_(uniform({9}, 2 + i));
    return made;
  }
  void train() {
    at::Tensor(parameters.values).add_(1);
    for (const at::Tensor& tensor : optimizer.tensors) at::Tensor(tensor).add_(1);
  }

  model::Trainables parameters;
  optim::OptimizerState optimizer;
};

/// A run with a log.
struct SmallRun : Trained {
  SmallRun() : Trained(filled()) {
    section.output_dir = folder.path().string();
    contents.profile_yaml = "model: some-model\n";
    write_file_atomic(folder / "metrics.jsonl", "{}\n");
  }

  SavedParts parts() const { return {section, nullptr, parameters, optimizer, contents}; }

  /// Saves step 1 through `ops`. How many operations came before training goes on.
  std::size_t save(RecordingFileOps& ops, std::int64_t free_memory) const {
    const ScopedFileOps scope(ops);
    BackgroundSaver saver(parts(), free_memory);
    run_folder::TrainState state;
    state.step = 1;
    saver.start(state);
    const std::size_t num_operations = ops.log().size();
    EXPECT_FALSE(saver.wait()->error);
    return num_operations;
  }

  TemporaryFolder folder;
  RunSection section;
  run_folder::Contents contents;
};

TEST(BackgroundSaver, WritesTheStateOfItsStepWhateverTrainingDoesThen) {
  for (const std::int64_t free_memory : {kEnough, std::int64_t{0}}) {
    SmallRun run;
    const at::Tensor values = run.parameters.values.clone(), moments = run.optimizer.tensors[1].clone();
    BackgroundSaver saver(run.parts(), free_memory);
    for (const std::int64_t step : {1, 2}) {
      const at::Tensor at_start = values + (step - 1), moments_at_start = moments + (step - 1);
      run_folder::TrainState state;
      state.step = step;
      saver.start(state);
      run.train();
      const auto result = saver.wait();
      ASSERT_TRUE(result && !result->error);
      Trained found;
      load_checkpoint_tensors(result->folder, false, found.parameters, found.optimizer);
      EXPECT_TRUE(at::equal(found.parameters.values, at_start)) << free_memory << ", step " << step;
      EXPECT_TRUE(at::equal(found.optimizer.tensors[1], moments_at_start)) << free_memory << ", step " << step;
    }
  }
}

TEST(BackgroundSaver, WithoutMemoryForACopyTrainingWaitsForTheDisk) {
  RecordingFileOps ops(file_ops());
  const std::size_t num_operations = SmallRun().save(ops, 0);
  EXPECT_EQ(ops.log().size(), num_operations) << "it was still writing when training went on";
}

TEST(BackgroundSaver, SyncsTheLogBeforeTheCheckpointHasItsName) {
  const SmallRun run;
  RecordingFileOps ops(file_ops());
  run.save(ops, kEnough);
  const std::size_t synced = ops.place_of("sync " + (run.folder / "metrics.jsonl").string());
  const std::size_t named = ops.place_of("rename " + (run.folder / "checkpoint-1").string());
  EXPECT_LT(synced, named);
  EXPECT_LT(named, ops.log().size());
}

bool equal(const Trained& a, const Trained& b) {
  bool is_equal = at::equal(a.parameters.values, b.parameters.values);
  for (std::size_t i = 0; i < a.optimizer.tensors.size(); ++i) {
    is_equal = is_equal && at::equal(a.optimizer.tensors[i], b.optimizer.tensors[i]);
  }
  return is_equal;
}

void write(const TemporaryFolder& folder, const Trained& saved) {
  storage::AtomicFolder target(folder / "checkpoint");
  target.write(checkpoint_files(nullptr, saved.parameters, saved.optimizer));
  target.commit();
}

void read(const TemporaryFolder& folder, Trained& into) {
  load_checkpoint_tensors(folder / "checkpoint", false, into.parameters, into.optimizer);
}

TEST(CheckpointTensors, BringBackEveryBitToTheRunThatSavedThem) {
  const TemporaryFolder folder;
  const Trained saved = Trained::filled();
  write(folder, saved);
  Trained found;
  EXPECT_FALSE(equal(found, saved));
  read(folder, found);
  EXPECT_TRUE(equal(found, saved));
  const storage::SafetensorsFile file(MappedFile(folder / "checkpoint" / "optimizer.safetensors"));
  std::set<std::string> names;
  for (const auto& entry : file.tensors()) names.insert(entry.name);
  ASSERT_EQ(names, (std::set<std::string>{"exp_avg.model.norm", "exp_avg.model.w", "exp_avg_sq.model.norm",
                                          "exp_avg_sq.model.w"}));
  EXPECT_EQ(file.find("exp_avg.model.w")->shape, (std::vector<std::int64_t>{3, 2}));
  Trained other_shape({{"model.w", {2, 3}}, {"model.norm", {3}, false}}), fewer({{"model.w", {3, 2}}});
  EXPECT_THROW(read(folder, other_shape), FormatError);
  EXPECT_THROW(read(folder, fewer), FormatError);
}

TEST(CheckpointTensors, KeepStateOfAnyDtypeAndSize) {
  const TemporaryFolder folder;
  const optim::Optimizer quantised{
      {},
      {{"codes", at::kByte},
       {"scales", at::kFloat, [](optim::ParameterBlocks blocks) { return std::ssize(blocks) + 1; }},
       {"none", at::kFloat, [](optim::ParameterBlocks) { return int64_t{0}; }},
       {"table", at::kLong, [](optim::ParameterBlocks) { return int64_t{2}; },
        [](optim::ParameterBlocks blocks) { return at::full({2}, std::ssize(blocks), at::kLong); }}},
      nullptr};
  Trained saved({{"model.w", {3, 2}}, {"model.norm", {3}, false}}, quantised);
  EXPECT_EQ(saved.optimizer.bytes(), 9 + 3 * 4 + 2 * 8);
  EXPECT_EQ(quantised.state_bytes(saved.parameters.blocks()), saved.optimizer.bytes());
  saved.optimizer.tensors[0].copy_(at::arange(250, 259));
  saved.optimizer.tensors[1].copy_(uniform({3}, 4));
  write(folder, saved);
  Trained found({{"model.w", {3, 2}}, {"model.norm", {3}, false}}, quantised);
  found.optimizer.tensors[3].fill_(5);
  read(folder, found);
  EXPECT_EQ(found.optimizer.tensors[3][0].item<int64_t>(), 5) << "constants are not in checkpoints";
  found.optimizer.tensors[3].copy_(saved.optimizer.tensors[3]);
  EXPECT_TRUE(equal(found, saved));
  Trained other;
  EXPECT_THROW(read(folder, other), FormatError) << "of another optimizer";
}

TEST(CheckpointTensors, WhatIsNotFiniteIsNotSaved) {
  for (const std::size_t which : {0, 1, 2}) {
    const TemporaryFolder folder;
    const Trained trained = Trained::filled();
    at::Tensor flat = which == 0 ? trained.parameters.values : trained.optimizer.tensors[which - 1];
    flat[8] = INFINITY;
    EXPECT_THROW(write(folder, trained), NumericError) << which;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(CheckpointTensors, AHostCopyOfTheStateStaysAsItWasTaken) {
  const Trained live = Trained::filled();
  const at::Tensor before = live.optimizer.tensors[1].clone();
  optim::OptimizerState copy = live.optimizer.host_copy();
  at::Tensor(live.optimizer.tensors[1]).zero_();
  EXPECT_TRUE(at::equal(copy.tensors[1], before));
  copy.copy_from(live.optimizer);
  EXPECT_TRUE(at::equal(copy.tensors[1], live.optimizer.tensors[1]));
}

}  // namespace
}  // namespace lora_train::run
