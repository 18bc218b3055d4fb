#include "lora_train/run/background_saver.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "lora_train/base/file.h"
#include "support/recording_file_ops.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::run {
namespace {

using testing_support::RecordingFileOps;
using testing_support::ScopedFileOps;
using testing_support::TemporaryFolder;
using testing_support::uniform;

constexpr std::int64_t kEnough = std::numeric_limits<std::int64_t>::max();

/// A run of nine parameters, with a log.
struct SmallRun {
  SmallRun() : optimizer(optim::optimizer_for(OptimizerKind::kAdamwTorch), parameters.blocks(), at::kCPU) {
    parameters.values.copy_(uniform({9}, 1));
    for (std::size_t i = 0; i < 2; ++i) optimizer.tensors[i].copy_(uniform({9}, 2 + i));
    section.output_dir = folder.path().string();
    contents.profile_yaml = "model: some-model\n";
    write_file_atomic(folder / "metrics.jsonl", "{}\n");
  }

  SavedParts parts() const { return {section, nullptr, {}, parameters, optimizer, contents}; }

  void train() {
    at::Tensor(parameters.values).add_(1);
    for (const at::Tensor& tensor : optimizer.tensors) at::Tensor(tensor).add_(1);
  }

  TemporaryFolder folder;
  RunSection section;
  model::Trainables parameters{{{"model.w", {3, 2}}, {"model.norm", {3}, false}}};
  optim::OptimizerState optimizer;
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
      SmallRun found;
      load_checkpoint_tensors(result->folder, false, found.parameters, found.optimizer);
      EXPECT_TRUE(at::equal(found.parameters.values, at_start)) << free_memory << ", step " << step;
      EXPECT_TRUE(at::equal(found.optimizer.tensors[1], moments_at_start)) << free_memory << ", step " << step;
    }
  }
}

TEST(BackgroundSaver, WithoutMemoryForACopyTrainingWaitsForTheDisk) {
  const SmallRun run;
  RecordingFileOps ops(file_ops());
  const ScopedFileOps scope(ops);
  BackgroundSaver saver(run.parts(), 0);
  run_folder::TrainState state;
  state.step = 1;
  saver.start(state);
  const std::size_t num_operations = ops.log().size();
  EXPECT_FALSE(saver.wait()->error);
  EXPECT_EQ(ops.log().size(), num_operations) << "it was still writing when training went on";
}

TEST(BackgroundSaver, SyncsTheLogBeforeTheCheckpointHasItsName) {
  const SmallRun run;
  RecordingFileOps ops(file_ops());
  const ScopedFileOps scope(ops);
  BackgroundSaver saver(run.parts(), kEnough);
  run_folder::TrainState state;
  state.step = 1;
  saver.start(state);
  EXPECT_FALSE(saver.wait()->error);
  const std::size_t synced = ops.place_of("sync " + (run.folder / "metrics.jsonl").string());
  const std::size_t named = ops.place_of("rename " + (run.folder / "checkpoint-1").string());
  EXPECT_LT(synced, named);
  EXPECT_LT(named, ops.log().size());
}

}  // namespace
}  // namespace lora_train::run
