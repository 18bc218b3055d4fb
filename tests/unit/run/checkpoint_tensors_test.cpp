#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "lora_train/base/error.h"
#include "lora_train/run/background_saver.h"
#include "lora_train/storage/safetensors.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::run {
namespace {

using testing_support::TemporaryFolder;
using testing_support::uniform;

/// What a checkpoint holds, with an optimizer that is not AdamW's where a row is given.
struct Trained {
  explicit Trained(std::vector<model::Parameter> list = {{"model.w", {3, 2}}, {"model.norm", {3}, false}},
                   const optim::Optimizer& row = optim::optimizer_for(OptimizerKind::kAdamwTorch))
      : parameters(std::move(list)), optimizer(row, parameters.blocks(), at::kCPU) {}

  static Trained filled() {
    Trained made;
    made.parameters.values.copy_(uniform({9}, 1));
    made.optimizer.tensors[0].copy_(uniform({9}, 2));
    made.optimizer.tensors[1].copy_(uniform({9}, 3));
    return made;
  }

  model::Trainables parameters;
  optim::OptimizerState optimizer;
};

bool equal(const Trained& a, const Trained& b) {
  bool is_equal = at::equal(a.parameters.values, b.parameters.values);
  for (std::size_t i = 0; i < a.optimizer.tensors.size(); ++i) {
    is_equal = is_equal && at::equal(a.optimizer.tensors[i], b.optimizer.tensors[i]);
  }
  return is_equal;
}

void write(const TemporaryFolder& folder, const Trained& saved) {
  storage::AtomicFolder target(folder / "checkpoint");
  target.write(checkpoint_files(nullptr, {}, saved.parameters, saved.optimizer));
  target.commit();
}

void read(const TemporaryFolder& folder, Trained& into) {
  load_checkpoint_tensors(folder / "checkpoint", false, into.parameters, into.optimizer);
}

TEST(CheckpointTensors, BringBackEveryBit) {
  const TemporaryFolder folder;
  const Trained saved = Trained::filled();
  write(folder, saved);
  Trained found;
  EXPECT_FALSE(equal(found, saved));
  read(folder, found);
  EXPECT_TRUE(equal(found, saved));
}

TEST(CheckpointTensors, MomentsAreNamedAfterTheirParameters) {
  const TemporaryFolder folder;
  write(folder, Trained::filled());
  const storage::SafetensorsFile file(MappedFile(folder / "checkpoint" / "optimizer.safetensors"));
  std::set<std::string> names;
  for (const auto& entry : file.tensors()) names.insert(entry.name);
  ASSERT_EQ(names, (std::set<std::string>{"exp_avg.model.norm", "exp_avg.model.w", "exp_avg_sq.model.norm",
                                          "exp_avg_sq.model.w"}));
  EXPECT_EQ(file.find("exp_avg.model.w")->shape, (std::vector<std::int64_t>{3, 2}));
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

TEST(CheckpointTensors, ThoseOfAnotherRunAreRefused) {
  const TemporaryFolder folder;
  write(folder, Trained::filled());
  Trained other_shape({{"model.w", {2, 3}}, {"model.norm", {3}, false}});
  EXPECT_THROW(read(folder, other_shape), FormatError);
  Trained fewer({{"model.w", {3, 2}}});
  EXPECT_THROW(read(folder, fewer), FormatError);
}

TEST(CheckpointTensors, WhatIsNotFiniteIsNotSaved) {
  const auto spoil = [](at::Tensor flat) {
    flat[8] = INFINITY;
    return flat;
  };
  for (const int which : {0, 1, 2}) {
    const TemporaryFolder folder;
    const Trained trained = Trained::filled();
    spoil(which == 0 ? trained.parameters.values : trained.optimizer.tensors[static_cast<std::size_t>(which - 1)]);
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
