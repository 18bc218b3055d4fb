// Values of the profiles in configs/. Runs in the root of the repository.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

const std::vector<std::string> kGpuProfiles = {"4xh200-confidence", "4xh200-ddp", "8xh100", "a10g-4bit", "h100",
                                               "h100-long",         "h200-cot"};

LoadedProfile shipped(const std::string& name, const std::string& train_data = "") {
  ProfileSources sources;
  sources.profiles = {name};
  sources.shipped = {"configs"};
  sources.environment = [](const std::string&) { return std::nullopt; };
  sources.needs_datasets = false;
  if (!train_data.empty()) sources.overrides = {flag_override("datasets", train_data, "--train-data")};
  return load_profile(sources);
}

TEST(Shipped, AllLoadWithoutNotesAndOpenWithTheirCommand) {
  const auto profiles = shipped_profiles("configs");
  ASSERT_EQ(profiles.size(), kGpuProfiles.size() + 1);
  for (const auto& profile : profiles) {
    const LoadedProfile loaded = shipped(profile.name);
    EXPECT_TRUE(loaded.notes.empty()) << profile.name;
    EXPECT_TRUE(loaded.warnings.empty()) << profile.name;
    EXPECT_EQ(read_file(profile.file).find("# Not built yet: "), std::string::npos) << profile.name;
    EXPECT_NE(profile.summary.find("lora-train train --profile "), std::string::npos) << profile.name;
    EXPECT_NE(profile.summary.find(profile.name), std::string::npos) << profile.name;
    if (profile.name == "tiny_cpu") continue;  // the example itself
    EXPECT_NE(profile.summary.find(" --train-data "), std::string::npos) << profile.name;
  }
}

TEST(Shipped, GpuProfilesHaveNoDataOfOurs) {
  for (const auto& name : kGpuProfiles) {
    const Profile p = shipped(name, "train.jsonl").profile;
    ASSERT_EQ(p.data.datasets.size(), 1U) << name;
    EXPECT_EQ(p.data.datasets[0].path, "train.jsonl") << name;
    EXPECT_TRUE(p.data.eval_datasets.empty()) << name;
    EXPECT_EQ(read_file("configs/" + name + ".yaml").find("tiny"), std::string::npos) << name;
  }
}

TEST(Shipped, GpuProfilesSayWhatTheyTrain) {
  for (const auto& name : kGpuProfiles) {
    const Profile p = shipped(name).profile;
    for (const char* key : {"max_seq_len", "lora_r", "lora_alpha", "learning_rate", "num_epochs", "gpu_price_per_hour",
                            "batch_unit", "base_precision", "output_dir"}) {
      EXPECT_TRUE(p.is_given(key)) << name << " " << key;
    }
    EXPECT_EQ(p.schedule.batch_unit, BatchUnit::kDocuments) << name;
    EXPECT_EQ(p.run.gradient_checkpointing, GradientCheckpointing::kAuto) << name;
    EXPECT_EQ(p.model.precision, Precision::kBf16) << name;
  }
}

/// Numbers and truth values of YAML, which come as text.
nlohmann::ordered_json typed(const nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    nlohmann::ordered_json result = value;
    for (auto& item : result) item = typed(item);
    return result;
  }
  const std::string text = value;
  if (text == "true" || text == "false") return text == "true";
  const auto number = parse_number(text);
  return number ? nlohmann::ordered_json::parse(text) : nlohmann::ordered_json(text);
}

/// What configs/NAME.json holds. With LORA_TRAIN_UPDATE_DOCS set, it is written.
std::string json_twin(const std::string& name) {
  const std::string file = "configs/" + name + ".yaml";
  return typed(nlohmann::ordered_json::parse(to_json_text(parse_yaml(read_file(file), {file, 0})))).dump(2) + "\n";
}

TEST(Shipped, JsonTwinsAreMadeFromTheYaml) {
  for (const auto& name : kGpuProfiles) {
    const std::string file = "configs/" + name + ".json";
    if (std::getenv("LORA_TRAIN_UPDATE_DOCS") != nullptr) write_file_atomic(file, json_twin(name));
    EXPECT_TRUE(read_file(file) == json_twin(name)) << file << ": run scripts/make_profile_docs.sh";
    const LoadedProfile yaml = shipped(name + ".yaml"), json = shipped(name + ".json");
    EXPECT_EQ(to_json(yaml.profile), to_json(json.profile)) << name;
    EXPECT_EQ(yaml.profile.given_keys, json.profile.given_keys) << name;
  }
}

TEST(Shipped, NamesAreFoundInAnyCaseAndWithAnyEnding) {
  const std::vector<std::filesystem::path> folders = {"no-such-folder", "configs"};
  for (const char* name : {"A10G-4bit", "a10g-4BIT.yaml", "4xH200-DDP", "h100-bf16", "H100-BF16.json", "tiny_cpu"}) {
    EXPECT_TRUE(find_shipped(name, folders)) << name;
  }
  EXPECT_EQ(find_shipped("h100-bf16", folders)->filename(), "h100.yaml");
  EXPECT_EQ(find_shipped("H100.JSON", folders)->filename(), "h100.json");
  for (const char* name : {"", "h10", "h100.toml", "..", "h100/"}) EXPECT_FALSE(find_shipped(name, folders)) << name;
  EXPECT_EQ(shipped("A10G-4bit").profile.model.base_precision, BasePrecision::kNf4);
}

TEST(Shipped, A10g4bit) {
  const Profile p = shipped("a10g-4bit").profile;
  EXPECT_EQ(p.model.base_precision, BasePrecision::kNf4);
  EXPECT_EQ(p.schedule.global_batch_size, 8);
  EXPECT_EQ(p.optimizer.kind, OptimizerKind::kAdamw8bit);
  EXPECT_EQ(p.run.logging_steps, 1);
  EXPECT_EQ(p.run.save_steps, (Cadence{Cadence::Kind::kSteps, 100}));
}

TEST(Shipped, H100) {
  const Profile p = shipped("h100").profile;
  EXPECT_EQ(p.model.base_precision, BasePrecision::kBf16);
  EXPECT_TRUE(p.run.tf32);
  EXPECT_EQ(p.schedule.micro_batch_size, std::nullopt);
  EXPECT_EQ(p.schedule.global_batch_size, 16);
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
  EXPECT_EQ(p.schedule.global_batch_size, 8);
  EXPECT_EQ(p.data.dataloader_num_workers, 4);
  EXPECT_EQ(p.data.stage_dir, "auto");
  EXPECT_EQ(p.run.cuda_graphs, CudaGraphs::kAuto);
  EXPECT_TRUE(p.is_given("cuda_graphs"));
  EXPECT_EQ(p.run.save_steps, (Cadence{Cadence::Kind::kSteps, 2000}));
}

TEST(Shipped, H200Cot) {
  const Profile p = shipped("h200-cot").profile;
  EXPECT_EQ(p.data.max_seq_len, 1536);
  EXPECT_EQ(p.schedule.global_batch_size, 8);
  EXPECT_TRUE(p.run.tf32);
  EXPECT_EQ(p.run.save_steps, (Cadence{Cadence::Kind::kSteps, 100}));
}

TEST(Shipped, FourH200) {
  const Profile p = shipped("4xh200-ddp").profile;
  EXPECT_EQ(p.model.base_precision, BasePrecision::kInt8);
  EXPECT_EQ(*p.schedule.micro_batch_size * *p.schedule.gradient_accumulation_steps * 4, 128);
  EXPECT_EQ(p.schedule.num_epochs, 2);
  EXPECT_EQ(p.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(p.schedule.lr_scaling, LrScaling::kSqrt);
  EXPECT_EQ(p.schedule.lr_base_batch, 128);
  EXPECT_EQ(p.run.eval_steps, (Cadence{Cadence::Kind::kSteps, 500}));
  EXPECT_EQ(p.data.val_set_size, 200);
  EXPECT_EQ(p.data.eval_max_samples, 200);
}

TEST(Shipped, FourH200WithConfidenceTokensIsTheOtherOneWithThree) {
  const LoadedProfile confidence = shipped("4xh200-confidence"), plain = shipped("4xh200-ddp");
  std::vector<std::string> keys;
  for (const auto& difference : diff_profiles(plain.profile, confidence.profile)) keys.push_back(difference.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"add_tokens", "eval_tasks", "confidence_tokens", "output_dir"}));
  EXPECT_EQ(confidence.profile.model.add_tokens.size(), 5U);
}

TEST(Shipped, EightH100) {
  const Profile p = shipped("8xh100").profile;
  EXPECT_EQ(p.model.path, "Qwen/Qwen3-4B");
  EXPECT_EQ(p.model.base_precision, BasePrecision::kBf16);
  EXPECT_EQ(p.data.max_seq_len, 32768);
  EXPECT_EQ(p.schedule.global_batch_size, 128);
}

TEST(Shipped, TinyCpuAsksForNothingUnbuilt) {
  const LoadedProfile loaded = shipped("tiny_cpu");
  EXPECT_EQ(loaded.profile.run.device, Device::kCpu);
  EXPECT_EQ(loaded.profile.model.precision, Precision::kFp32);
  EXPECT_EQ(loaded.profile.model.base_precision, BasePrecision::kFp32);
  EXPECT_LE(loaded.profile.schedule.max_steps.value_or(1000), 50);
}

}  // namespace
}  // namespace lora_train
