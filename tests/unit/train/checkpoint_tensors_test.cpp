#include "train/checkpoint_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/base/error.h"
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

void write(const TemporaryFolder& folder, const model::Parameters& saved) {
  storage::write_folder(folder / "checkpoint", checkpoint_files(nullptr, {}, saved));
}

TEST(CheckpointTensors, BringBackEveryBit) {
  const TemporaryFolder folder;
  const model::Parameters saved = parameters();
  write(folder, saved);
  model::Parameters read({{"model.w", {3, 2}, true, 0}, {"model.norm", {3}, false, 0}});
  load_checkpoint_tensors(folder / "checkpoint", false, read);
  EXPECT_TRUE(at::equal(read.values, saved.values));
  EXPECT_TRUE(at::equal(read.exp_avg, saved.exp_avg));
  EXPECT_TRUE(at::equal(read.exp_avg_sq, saved.exp_avg_sq));
}

TEST(CheckpointTensors, ThoseOfAnotherRunAreRefused) {
  const TemporaryFolder folder;
  write(folder, parameters());
  model::Parameters other_shape({{"model.w", {2, 3}, true, 0}, {"model.norm", {3}, false, 0}});
  EXPECT_THROW(load_checkpoint_tensors(folder / "checkpoint", false, other_shape), FormatError);
  model::Parameters fewer({{"model.w", {3, 2}, true, 0}});
  EXPECT_THROW(load_checkpoint_tensors(folder / "checkpoint", false, fewer), FormatError);
}

TEST(CheckpointTensors, WhatIsNotFiniteIsNotSaved) {
  for (const char* which : {"value", "first moment", "second moment"}) {
    const TemporaryFolder folder;
    const model::Parameters values = parameters();
    at::Tensor(which[0] == 'v' ? values.values : which[0] == 'f' ? values.exp_avg : values.exp_avg_sq)[8] = INFINITY;
    EXPECT_THROW(write(folder, values), NumericError) << which;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(CheckpointTensors, AHostCopyStaysAsItWasTaken) {
  const model::Parameters live = parameters();
  const at::Tensor before = live.exp_avg_sq.clone();
  model::Parameters copy = live.host_copy();
  live.values.zero_();
  live.exp_avg_sq.zero_();
  EXPECT_TRUE(at::equal(copy.exp_avg_sq, before));
  EXPECT_FALSE(at::equal(copy.values, live.values));
  copy.copy_state_from(live);
  EXPECT_TRUE(at::equal(copy.exp_avg_sq, live.exp_avg_sq));
}

}  // namespace
}  // namespace lora_train::train
