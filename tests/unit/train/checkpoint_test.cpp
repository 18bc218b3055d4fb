#include "train/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::train {
namespace {

using testing_support::TemporaryFolder;
using testing_support::uniform;

model::Parameters parameters() {
  model::Parameters made({{"model.w", {3, 2}, true, 0}, {"model.norm", {3}, false, 0}});
  made.values.copy_(uniform({9}, 1));
  made.exp_avg.copy_(uniform({9}, 2));
  made.exp_avg_sq.copy_(uniform({9}, 3));
  return made;
}

CheckpointContext context() {
  CheckpointContext made;
  made.total_steps = 10;
  made.data_fingerprint = "abc";
  return made;
}

TrainState state(std::int64_t step) {
  TrainState made;
  made.step = step;
  made.epoch = 0.1 * static_cast<double>(step);
  made.tokens = 1234567890123;
  made.best_eval_loss = 0.1 + 0.2;
  made.eval_step = step - 1;
  made.loss_sum = 1.0 / 3.0;
  made.loss_tokens = 77;
  return made;
}

std::vector<std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& path : list_checkpoints(folder)) names.push_back(path.filename().string());
  return names;
}

TEST(Checkpoint, BringsBackEveryBit) {
  const TemporaryFolder folder;
  const model::Parameters saved = parameters();
  const auto path = save_checkpoint(folder.path(), state(7), saved, context());
  EXPECT_EQ(path.filename(), "checkpoint-7");
  EXPECT_EQ(verify_checkpoint(path), "");
  const LoadedCheckpoint loaded = read_checkpoint_state(path);
  EXPECT_EQ(loaded.state.step, 7);
  EXPECT_EQ(loaded.state.tokens, 1234567890123);
  EXPECT_EQ(loaded.state.best_eval_loss, 0.1 + 0.2);
  EXPECT_FALSE(loaded.state.eval_loss.has_value());
  EXPECT_EQ(loaded.state.eval_step, 6);
  EXPECT_EQ(loaded.state.loss_sum, 1.0 / 3.0);
  EXPECT_EQ(loaded.state.loss_tokens, 77);
  EXPECT_EQ(loaded.data_fingerprint, "abc");
  model::Parameters read({{"model.w", {3, 2}, true, 0}, {"model.norm", {3}, false, 0}});
  load_checkpoint_tensors(path, false, read);
  EXPECT_TRUE(at::equal(read.values, saved.values));
  EXPECT_TRUE(at::equal(read.exp_avg, saved.exp_avg));
  EXPECT_TRUE(at::equal(read.exp_avg_sq, saved.exp_avg_sq));
}

TEST(Checkpoint, NoticesATruncatedAndAFlippedFile) {
  const TemporaryFolder folder;
  const auto path = save_checkpoint(folder.path(), state(1), parameters(), context());
  const std::string bytes = read_file(path / "optimizer.safetensors");
  write_file_atomic(path / "optimizer.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_NE(verify_checkpoint(path).find("size"), std::string::npos);
  std::string flipped = bytes;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_file_atomic(path / "optimizer.safetensors", flipped);
  EXPECT_NE(verify_checkpoint(path).find("content"), std::string::npos);
  std::filesystem::remove(path / "manifest.json");
  EXPECT_NE(verify_checkpoint(path).find("manifest"), std::string::npos);
}

TEST(Checkpoint, AFileThatCannotBeReadIsAProblemAndNoSignal) {
  const TemporaryFolder folder;
  const auto path = save_checkpoint(folder.path(), state(1), parameters(), context());
  std::filesystem::remove(path / "optimizer.safetensors");
  std::filesystem::create_symlink("/proc/self/mem", path / "optimizer.safetensors");  // read() says EIO
  EXPECT_NE(verify_checkpoint(path).find("Input/output error"), std::string::npos) << verify_checkpoint(path);
}

TEST(Checkpoint, RefusesTensorsOfAnotherRun) {
  const TemporaryFolder folder;
  const auto path = save_checkpoint(folder.path(), state(1), parameters(), context());
  model::Parameters other_shape({{"model.w", {2, 3}, true, 0}, {"model.norm", {3}, false, 0}});
  EXPECT_THROW(load_checkpoint_tensors(path, false, other_shape), FormatError);
  model::Parameters fewer({{"model.w", {3, 2}, true, 0}});
  EXPECT_THROW(load_checkpoint_tensors(path, false, fewer), FormatError);
}

TEST(Checkpoint, ListsNewestFirstAndRotatesTheOldest) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {2, 10, 9}) save_checkpoint(folder.path(), state(step), parameters(), context());
  std::filesystem::create_directory(folder / "checkpoint-x");
  rotate_checkpoints(folder.path(), 2, std::nullopt);
  EXPECT_EQ(checkpoints_in(folder.path()), (std::vector<std::string>{"checkpoint-10", "checkpoint-9"}));
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-x"));
}

TEST(Checkpoint, RotationSparesTheBest) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3, 4}) save_checkpoint(folder.path(), state(step), parameters(), context());
  rotate_checkpoints(folder.path(), 1, 2);
  EXPECT_EQ(checkpoints_in(folder.path()), (std::vector<std::string>{"checkpoint-4", "checkpoint-2"}));
}

TEST(Checkpoint, AnotherFutureIsDeleted) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3}) save_checkpoint(folder.path(), state(step), parameters(), context());
  delete_checkpoints_after(folder.path(), 2);
  EXPECT_EQ(checkpoints_in(folder.path()), (std::vector<std::string>{"checkpoint-2", "checkpoint-1"}));
}

TEST(Checkpoint, AFailedSaveLeavesTheFolderAsItWas) {
  const TemporaryFolder folder;
  model::Parameters values = parameters();
  CheckpointContext with_adapter = context();
  const lora::AdapterConfig adapter;
  with_adapter.adapter = &adapter;
  values.values[0] = NAN;
  EXPECT_THROW(save_checkpoint(folder.path(), state(3), values, with_adapter), NumericError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lora_train::train
