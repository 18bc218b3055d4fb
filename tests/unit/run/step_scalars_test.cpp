#include "lora_train/run/step_scalars.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::run {
namespace {

optim::LrSchedule constant(double learning_rate) { return {.peak = learning_rate}; }

void run_step(StepScalars& scalars) {
  scalars.begin(1, 1, constant(0), {});
  scalars.end();
}

std::vector<std::int32_t> keys_of(const StepScalars& scalars) {
  const at::Tensor keys = scalars.dropout_keys().flatten().contiguous();
  return {keys.const_data_ptr<std::int32_t>(), keys.const_data_ptr<std::int32_t>() + keys.numel()};
}

TEST(StepScalars, GoThereAndBack) {
  StepScalars scalars({});
  scalars.begin(1, 2, constant(3), {});
  scalars.device()[optim::kLossSum] += 1.5;
  scalars.device()[optim::kGradNorm] = 9.0;
  scalars.end();
  scalars.begin(2, 20, constant(30), {});
  scalars.end();
  const auto first = scalars.wait(), second = scalars.wait();
  EXPECT_EQ(first[optim::kLossSum], 1.5);
  EXPECT_EQ(first[optim::kLearningRate], 3);
  EXPECT_EQ(first[optim::kGradNorm], 9);
  EXPECT_EQ(second[optim::kLossSum], 0);  // each step begins with none
  EXPECT_EQ(second[optim::kLearningRate], 30);
  EXPECT_THROW(scalars.wait(), ShapeError);
}

TEST(StepScalars, BringsTheKeysOfDropout) {
  StepScalars scalars({}, 2);
  const std::vector<PhiloxKey> keys = {{1, 2}, {3, 4294967295U}};
  scalars.begin(1, 1, constant(0), {}, keys);
  EXPECT_EQ(keys_of(scalars), (std::vector<std::int32_t>{1, 2, 3, -1}));
  scalars.end();
  scalars.begin(1, 1, constant(0), {}, std::vector<PhiloxKey>{{5, 6}, {7, 8}});
  EXPECT_EQ(keys_of(scalars), (std::vector<std::int32_t>{5, 6, 7, 8})) << "of every step";
  EXPECT_THROW(scalars.begin(1, 1, constant(0), {}, std::vector<PhiloxKey>(3)), ShapeError);
}

TEST(StepScalars, AStepThatBrokeOffIsForgotten) {
  StepScalars scalars({});
  for (int i = 0; i < 10; ++i) scalars.begin(1, 1, constant(0), {});
  scalars.begin(1, 1, constant(7), {});
  scalars.end();
  EXPECT_EQ(scalars.wait()[optim::kLearningRate], 7);
}

TEST(StepScalars, NotMoreStepsThanThereAreSlots) {
  StepScalars scalars({});
  for (std::size_t i = 0; i <= kMaxStepsInFlight; ++i) run_step(scalars);
  EXPECT_THROW(scalars.begin(1, 1, constant(0), {}), ShapeError);
}

TEST(StepScalars, FrozenStaysFromStepToStep) {
  StepScalars scalars({});
  for (const bool is_frozen : {true, false}) {
    scalars.set_frozen(is_frozen);
    run_step(scalars);
    EXPECT_EQ(scalars.wait()[optim::kNonFinite], is_frozen ? 1 : 0);
  }
}

}  // namespace
}  // namespace lora_train::run
