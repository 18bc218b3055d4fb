#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/optimizer.h"
#include "support/tensors.h"

namespace lora_train::optim {
namespace {

using testing_support::uniform;

TEST(Optimizers, AdamWKeepsTwoMoments) {
  const Optimizer& adamw = optimizer_for(OptimizerKind::kAdamwTorch);
  EXPECT_EQ(&adamw, &optimizer_for(OptimizerKind::kAdamwTorchFused));
  EXPECT_EQ(adamw.state_bytes(1000), 8000);
  const OptimizerState state(adamw, 1000, at::kCPU);
  EXPECT_EQ(state.bytes(), 8000);
  ASSERT_EQ(state.tensors.size(), 2u);
  EXPECT_EQ(state.tensors[1].abs().sum().item<float>(), 0);
}

TEST(Optimizers, TheRowOfAdamWStepsAsAdamW) {
  OptimizerState state(optimizer_for(OptimizerKind::kAdamwTorch), 50, at::kCPU);
  const auto grads = uniform({50}, 2);
  auto got = uniform({50}, 1), want = got.clone(), m = at::zeros({50}), v = at::zeros({50});
  auto scalars = at::ones({kNumStepScalars}, at::kDouble);
  scalars[kNonFinite] = 0;
  const std::vector<kernels::ParameterBlock> blocks = {{0, 20}, {20, 30, 4.0, false}};
  const AdamWOptions options{0.9, 0.99, 1e-8, 0.1};
  state.update(got, grads, options, blocks, scalars);
  adamw_step(want, grads, m, v, options, blocks, scalars);
  EXPECT_TRUE(at::equal(got, want));
  EXPECT_TRUE(at::equal(state.tensors[0], m));
  EXPECT_TRUE(at::equal(state.tensors[1], v));
}

TEST(Optimizers, WhatHasNoRowIsRefused) { EXPECT_THROW((void)optimizer_for(OptimizerKind::kAdamw8bit), ConfigError); }

}  // namespace
}  // namespace lora_train::optim
