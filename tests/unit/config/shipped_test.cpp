// Values of the profiles in configs/. Runs in the root of the repository.
#include <gtest/gtest.h>

#include <fstream>

#include "lora_train/config/check.h"
#include "lora_train/config/load.h"

namespace lora_train {
namespace {

LoadedProfile shipped(const std::string& name) {
  ProfileSources sources;
  sources.profiles = {name};
  sources.shipped = {"configs"};
  sources.environment = [](const std::string&) { return std::nullopt; };
  return load_profile(sources);
}

TEST(Shipped, AllLoadWithoutNotesAndOpenWithTheirCommand) {
  const auto profiles = shipped_profiles("configs");
  ASSERT_EQ(profiles.size(), 6u);
  for (const auto& profile : profiles) {
    const LoadedProfile loaded = shipped(profile.name);
    EXPECT_TRUE(loaded.notes.empty()) << profile.name;
    EXPECT_TRUE(loaded.warnings.empty()) << profile.name;
    EXPECT_NE(profile.summary.find("lora-train train --profile "), std::string::npos) << profile.name;
    EXPECT_NE(profile.summary.find(profile.name), std::string::npos) << profile.name;
    if (profile.name == "tiny_cpu") continue;  // the example itself
    // The data of the others stand for the user's: the command replaces all of them.
    EXPECT_NE(profile.summary.find(" --train-data "), std::string::npos) << profile.name;
    const bool has_eval = !loaded.profile.data.eval_datasets.empty();
    EXPECT_EQ(profile.summary.find(" --eval-data ") != std::string::npos, has_eval) << profile.name;
  }
}

TEST(Shipped, YamlAndJsonTwinsAreOneProfile) {
  for (const char* name : {"a10g-4bit", "h100", "h100-long", "4xh200-ddp", "8xh100"}) {
    const LoadedProfile yaml = shipped(std::string(name) + ".yaml"), json = shipped(std::string(name) + ".json");
    EXPECT_EQ(to_json(yaml.profile), to_json(json.profile)) << name;
    EXPECT_EQ(yaml.profile.given_keys, json.profile.given_keys) << name;
  }
}

TEST(Shipped, A10g4bit) {
  const Profile p = shipped("a10g-4bit").profile;
  EXPECT_EQ(p.model.base_precision, BasePrecision::kNf4);
  EXPECT_EQ(p.schedule.micro_batch_size, 2);
  EXPECT_EQ(p.schedule.gradient_accumulation_steps, 4);
  EXPECT_FALSE(p.schedule.global_batch_size.has_value());
  EXPECT_EQ(p.run.gradient_checkpointing, GradientCheckpointing::kFull);
  EXPECT_EQ(p.optimizer.kind, OptimizerKind::kAdamw8bit);
  EXPECT_EQ(p.run.logging_steps, 1);
  EXPECT_EQ(p.run.save_steps, (Cadence{Cadence::Kind::kSteps, 100}));
}

TEST(Shipped, H100) {
  const Profile p = shipped("h100").profile;
  EXPECT_EQ(p.model.base_precision, BasePrecision::kBf16);
  EXPECT_EQ(p.model.precision, Precision::kBf16);
  EXPECT_TRUE(p.run.tf32);
  EXPECT_EQ(p.schedule.micro_batch_size, 8);
  EXPECT_EQ(p.schedule.gradient_accumulation_steps, 2);
  EXPECT_EQ(p.run.gradient_checkpointing, GradientCheckpointing::kOff);
  EXPECT_EQ(p.optimizer.kind, OptimizerKind::kAdamwTorch);
  EXPECT_EQ(p.data.dataloader_num_workers, 4);
  EXPECT_TRUE(p.data.dataloader_pin_memory);
  EXPECT_EQ(p.data.dataloader_prefetch_factor, 4);
  EXPECT_EQ(p.run.logging_steps, 10);
  EXPECT_EQ(p.run.save_steps, (Cadence{Cadence::Kind::kSteps, 500}));
  for (const char* key : {"dataloader_pin_memory", "optim", "save_steps"}) EXPECT_TRUE(p.is_given(key)) << key;
}

TEST(Shipped, H100Long) {
  const Profile p = shipped("h100-long").profile;
  EXPECT_EQ(p.schedule.micro_batch_size, 4);
  EXPECT_EQ(p.schedule.gradient_accumulation_steps, 2);
  EXPECT_EQ(p.data.dataloader_num_workers, 4);
  EXPECT_EQ(p.data.stage_dir, "auto");
  EXPECT_EQ(p.run.cuda_graphs, CudaGraphs::kAuto);
  EXPECT_TRUE(p.is_given("cuda_graphs"));
  EXPECT_EQ(p.run.save_steps, (Cadence{Cadence::Kind::kSteps, 2000}));
}

TEST(Shipped, FourH200) {
  const Profile p = shipped("4xh200-ddp").profile;
  EXPECT_EQ(p.model.base_precision, BasePrecision::kInt8);
  EXPECT_EQ(p.schedule.micro_batch_size, 16);
  EXPECT_EQ(p.schedule.gradient_accumulation_steps, 2);
  EXPECT_EQ(*p.schedule.micro_batch_size * *p.schedule.gradient_accumulation_steps * 4, 128);
  EXPECT_EQ(p.schedule.num_epochs, 2);
  EXPECT_EQ(p.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(p.run.eval_steps, (Cadence{Cadence::Kind::kSteps, 500}));
  EXPECT_EQ(p.data.val_set_size, 200);
}

TEST(Shipped, EightH100) {
  const Profile p = shipped("8xh100").profile;
  EXPECT_EQ(p.model.path, "Qwen/Qwen3-4B");
  EXPECT_EQ(p.model.base_precision, BasePrecision::kBf16);
  EXPECT_EQ(p.model.precision, Precision::kBf16);
  EXPECT_EQ(p.schedule.micro_batch_size, 16);
  EXPECT_EQ(p.schedule.global_batch_size, 128);
  EXPECT_EQ(p.run.gradient_checkpointing, GradientCheckpointing::kOff);
}

TEST(Shipped, TinyCpuAsksForNothingUnbuilt) {
  const LoadedProfile loaded = shipped("tiny_cpu");
  EXPECT_EQ(loaded.profile.run.device, Device::kCpu);
  EXPECT_EQ(loaded.profile.model.precision, Precision::kFp32);
  EXPECT_EQ(loaded.profile.model.base_precision, BasePrecision::kFp32);
  EXPECT_LE(loaded.profile.schedule.max_steps.value_or(1000), 50);
  EXPECT_TRUE(unbuilt_features(loaded.profile).empty());
}

}  // namespace
}  // namespace lora_train
