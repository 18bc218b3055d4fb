// Values of the profiles in configs/. Runs in the root of the repository.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

const std::vector<std::string> kGpuProfiles = {"4xh200-confidence",
                                               "4xh200-ddp",
                                               "8xh100",
                                               "a10g-4bit",
                                               "h100",
                                               "h100-long",
                                               "h200-cot",
                                               "ministral3-8b-24gb",
                                               "mistral-small-24b-h100",
                                               "qwen3.5-4b-24gb",
                                               "qwen3.5-9b-h100"};

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
    EXPECT_TRUE(loaded.notes.empty() && loaded.warnings.empty()) << profile.name;
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

TEST(Shipped, HaveTheseValues) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ministral3-8b-24gb", R"({"base_precision": "nf4", "target_gpu": "A10G", "optim": "adamw_8bit"})"},
      {"mistral-small-24b-h100", R"({"base_precision": "bf16", "target_gpu": "H100", "optim": "adamw_torch"})"},
      {"qwen3.5-4b-24gb", R"({"base_precision": "bf16", "target_gpu": "A10G", "optim": "adamw_8bit"})"},
      {"qwen3.5-9b-h100", R"({"base_precision": "bf16", "target_gpu": "H100", "optim": "adamw_torch"})"},
      {"a10g-4bit", R"({"base_precision": "nf4", "global_batch_size": 8, "optim": "adamw_8bit", "logging_steps": 1,
                        "save_steps": 100})"},
      {"h100", R"({"base_precision": "bf16", "tf32": true, "global_batch_size": 16, "optim": "adamw_torch",
                   "dataloader_num_workers": 4, "dataloader_pin_memory": true, "dataloader_prefetch_factor": 4,
                   "logging_steps": 10, "save_steps": 500})"},
      {"h100-long", R"({"global_batch_size": 8, "dataloader_num_workers": 4, "stage_dir": "auto",
                        "cuda_graphs": "auto", "save_steps": 2000})"},
      {"h200-cot", R"({"max_seq_len": 1536, "global_batch_size": 8, "tf32": true, "save_steps": 100})"},
      {"4xh200-ddp", R"({"base_precision": "int8", "micro_batch_size": 16, "gradient_accumulation_steps": 2,
                         "num_epochs": 2, "learning_rate": 3e-4, "lr_scaling": "sqrt", "lr_base_batch": 128,
                         "eval_steps": 500, "val_set_size": 200, "eval_max_samples": 200})"},
      {"8xh100", R"({"model": "Qwen/Qwen3-4B", "base_precision": "bf16", "max_seq_len": 32768,
                     "global_batch_size": 128})"},
      {"tiny_cpu", R"({"device": "cpu", "precision": "fp32", "base_precision": "fp32", "max_steps": 20})"},
  };
  for (const auto& [name, values] : cases) {
    const Profile profile = shipped(name).profile;
    const auto said = nlohmann::json::parse(to_json(profile)), expected = nlohmann::json::parse(values);
    for (const auto& [key, value] : expected.items()) {
      EXPECT_EQ(said.at(key), value) << name << " " << key;
      EXPECT_TRUE(profile.is_given(key)) << name << " " << key;
    }
  }
  EXPECT_EQ(shipped("h100").profile.schedule.micro_batch_size, std::nullopt);
}

TEST(Shipped, FourH200WithConfidenceTokensIsTheOtherOneWithThree) {
  const LoadedProfile confidence = shipped("4xh200-confidence"), plain = shipped("4xh200-ddp");
  std::vector<std::string> keys;
  for (const auto& difference : diff_profiles(plain.profile, confidence.profile)) keys.push_back(difference.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"add_tokens", "eval_tasks", "confidence_tokens", "output_dir"}));
  EXPECT_EQ(confidence.profile.model.add_tokens.size(), 5U);
}

}  // namespace
}  // namespace lora_train
