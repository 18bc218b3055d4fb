// What is said of runs on GPUs that are not here.
#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/plan/run_spec.h"

namespace lora_train::plan {
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

TEST_F(TargetGpu, AMisfitSaysWhatTheRunNeedsAndWhatToSet) {
  profile.schedule.micro_batch_size = 8;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const std::string text = misfit_on(79);
  EXPECT_TRUE(text.starts_with("the run needs ")) << text;
  EXPECT_NE(
      text.find(" GiB, but one X100 may use 76.8 GiB: use micro_batch_size: auto, or gradient_checkpointing: auto"),
      std::string::npos)
      << text;
}

TEST_F(TargetGpu, WithoutAccumulationAStepKeepsItsRows) {
  profile.schedule.micro_batch_size = 64;
  profile.schedule.gradient_accumulation_steps = 2;
  profile.schedule.global_batch_size.reset();
  EXPECT_NE(misfit_on(40).find("use micro_batch_size: auto with global_batch_size: 128 instead of "
                               "gradient_accumulation_steps"),
            std::string::npos)
      << misfit_on(40);
}

TEST_F(TargetGpu, WhereWeightsLeaveNoRoomAQuantisedBaseIsNamed) {
  EXPECT_NE(misfit_on(15).find("the run needs "), std::string::npos) << misfit_on(15);
  EXPECT_NE(misfit_on(15).find("use base_precision: nf4"), std::string::npos) << misfit_on(15);
  EXPECT_NE(misfit_on(2).find("no key can change that"), std::string::npos) << misfit_on(2);
}

TEST_F(TargetGpu, ARunFitsWhatItNeedsAtLeastAndNothingSmaller) {
  profile.schedule.micro_batch_size = 8;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  profile.run.activation_offload = ActivationOffload::kOff;
  const RunFacts pinned = facts_on({profile, config, adapters, 2048}, {.name = "X100", .memory_gib = 79});
  const std::int64_t least = least_bytes(pinned);
  EXPECT_LT(least, decide_smallest(pinned).memory.total());
  const Profile smallest = with_least_memory(profile);
  RunFacts facts = with_profile(pinned, smallest);
  facts.memory_bytes = least;
  EXPECT_EQ(decide(facts).memory.total(), least);
  facts.memory_bytes = least - 1;
  EXPECT_THROW(decide(facts), DeviceError);
}

TEST_F(TargetGpu, AQuantisedBaseNeedsLeastWithNoLayerDecoded) {
  const auto least_on = [&](BasePrecision precision) {
    profile.model.base_precision = precision;
    RunFacts facts{profile, config, adapters, 2048};
    facts.base = base_storage(profile.model, config);
    return static_cast<double>(least_bytes(facts_on(facts, {.name = "X100", .memory_gib = 79}))) / (1 << 30);
  };
  const double bf16 = least_on(BasePrecision::kBf16), nf4 = least_on(BasePrecision::kNf4);
  EXPECT_GT(bf16, 14);
  EXPECT_LT(nf4, 8);  // though a GPU of this size would hold all layers decoded
}

}  // namespace
}  // namespace lora_train::plan
