#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/optim/adamw.h"
#include "lora_train/optim/optimizer.h"
#include "support/tensors.h"

namespace lora_train::optim {
namespace {

using testing_support::uniform;

TEST(Optimizers, AdamWKeepsTwoMoments) {
  const Optimizer& adamw = optimizer_for(OptimizerKind::kAdamwTorch);
  EXPECT_EQ(&adamw, &optimizer_for(OptimizerKind::kAdamwTorchFused));
  const std::vector<kernels::ParameterBlock> blocks = {{0, 600}, {600, 400}};
  EXPECT_EQ(adamw.state_bytes(blocks), 8000);
  const OptimizerState state(adamw, blocks, at::kCPU);
  EXPECT_EQ(state.bytes(), 8000);
  ASSERT_EQ(state.tensors.size(), 2u);
  EXPECT_EQ(state.tensors[1].abs().sum().item<float>(), 0);
}

TEST(Optimizers, TheRowOfAdamWStepsAsAdamW) {
  const auto grads = uniform({50}, 2);
  auto got = uniform({50}, 1), want = got.clone(), m = at::zeros({50}), v = at::zeros({50});
  auto scalars = at::ones({kNumStepScalars}, at::kDouble);
  scalars[kNonFinite] = 0;
  const std::vector<kernels::ParameterBlock> blocks = {{0, 20}, {20, 30, 4.0, false}};
  OptimizerState state(optimizer_for(OptimizerKind::kAdamwTorch), blocks, at::kCPU);
  const AdamWOptions options{0.9, 0.99, 1e-8, 0.1};
  state.update(got, grads, options, blocks, scalars);
  adamw_step(want, grads, m, v, options, blocks, scalars);
  EXPECT_TRUE(at::equal(got, want));
  EXPECT_TRUE(at::equal(state.tensors[0], m));
  EXPECT_TRUE(at::equal(state.tensors[1], v));
}

TEST(Optimizers, AdamW8bitRoundsItsBetasToFp32) {
  OptimizerSection section;
  section.kind = OptimizerKind::kAdamw8bit;
  EXPECT_EQ(adamw_options(section).beta1, static_cast<double>(0.9F));
  EXPECT_EQ(adamw_options(section).beta2, static_cast<double>(0.999F));
  section.kind = OptimizerKind::kAdamwTorch;
  EXPECT_EQ(adamw_options(section).beta1, 0.9);
  EXPECT_EQ(adamw_options(section).beta2, 0.999);
}

TEST(Optimizers, TheRowOfAdamW8bitStepsAsAdamW8bit) {
  const std::vector<kernels::ParameterBlock> blocks = {{0, 4096}, {4096, 30, 4.0, false}};
  const Optimizer& row = optimizer_for(OptimizerKind::kAdamw8bit);
  OptimizerState state(row, blocks, at::kCPU), other(row, blocks, at::kCPU);
  EXPECT_EQ(state.bytes(), row.state_bytes(blocks));
  const auto grads = uniform({4126}, 2);
  auto got = uniform({4126}, 1), want = got.clone(), scalars = at::ones({kNumStepScalars}, at::kDouble);
  scalars[kNonFinite] = 0;
  const AdamWOptions options{0.9, 0.99, 1e-8, 0.1};
  const auto& t = other.tensors;
  state.update(got, grads, options, blocks, scalars);
  adamw_8bit_step(want, grads, {t[0], t[1], t[2], t[3], t[4], t[5], t[6]}, options, blocks, scalars);
  EXPECT_TRUE(at::equal(got, want));
  for (std::size_t i = 0; i < t.size(); ++i) EXPECT_TRUE(at::equal(state.tensors[i], t[i])) << i;
}

}  // namespace
}  // namespace lora_train::optim
