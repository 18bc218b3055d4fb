// What is said of runs on GPUs that are not here.
#include "lora_train/planner/target_gpu.h"

#include <gtest/gtest.h>

#include "lora_train/lora/lora_plan.h"
#include "lora_train/model/known_shapes.h"

namespace lora_train::planner {
namespace {

class TargetGpu : public ::testing::Test {
 protected:
  TargetGpu() : config(model::known_shape("qwen2.5-7b")), adapters(lora::plan_adapters({}, config)) {
    profile.model.precision = Precision::kBf16;
  }

  std::string misfit_on(double memory_gib) const {
    const RunFacts facts{profile, config, adapters, 2048};
    return misfit(facts, {.name = "X100", .memory_gib = memory_gib, .num_multiprocessors = 132});
  }

  model::ModelConfig config;
  std::vector<model::AdapterSpec> adapters;
  Profile profile;
};

TEST_F(TargetGpu, WhatFitsHasNothingSaidOfIt) {
  EXPECT_EQ(misfit_on(79), "");
  profile.schedule.micro_batch_size = 2;
  EXPECT_EQ(misfit_on(79), "");
}

TEST_F(TargetGpu, APinnedMicroBatchIsNamedWithBothSizesAndWhatToSet) {
  profile.schedule.micro_batch_size = 8;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const std::string text = misfit_on(79);
  EXPECT_TRUE(text.starts_with("micro_batch_size: 8 and gradient_checkpointing: off need ")) << text;
  EXPECT_NE(text.find(" GiB; one X100 may use 76.8 GiB: use micro_batch_size: auto, or gradient_checkpointing: auto"),
            std::string::npos)
      << text;
}

TEST_F(TargetGpu, WithoutAccumulationAStepKeepsItsRows) {
  profile.schedule.micro_batch_size = 64;
  profile.schedule.gradient_accumulation_steps = 2;
  profile.schedule.global_batch_size.reset();
  EXPECT_NE(misfit_on(40).find("use micro_batch_size: auto with global_batch_size: 128 in place of "
                               "gradient_accumulation_steps"),
            std::string::npos)
      << misfit_on(40);
}

TEST_F(TargetGpu, WhereWeightsLeaveNoRoomAQuantisedBaseIsNamed) {
  EXPECT_NE(misfit_on(15).find("the run needs "), std::string::npos) << misfit_on(15);
  EXPECT_NE(misfit_on(15).find("use base_precision: nf4"), std::string::npos) << misfit_on(15);
  EXPECT_NE(misfit_on(2).find("no key changes that"), std::string::npos) << misfit_on(2);
}

}  // namespace
}  // namespace lora_train::planner
