// Layers, settings, alternatives and what is collected on the way.
#include "lora_train/config/load.h"

#include <gtest/gtest.h>

#include "lora_train/config/layers.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

TEST(Load, AnUnknownKeyNamesItsNeighboursAndNotAllKeys) {
  const ProfileText files;
  const std::string error = files.error("weigth_decay: 1\n");
  EXPECT_NE(error.find("Did you mean \"weight_decay\"?"), std::string::npos) << error;
  EXPECT_EQ(error.find("lora_dropout"), std::string::npos) << error;
}

TEST(Load, OtherDevicesAreNamed) {
  const ProfileText files;
  EXPECT_NE(files.error("device: mps\n").find("\"mps\" is not supported"), std::string::npos);
  EXPECT_EQ(files.load("device: cuda:0\n").profile.run.device, Device::kCuda);
}

TEST(Load, AFallbackLosesAgainstEverything) {
  const ProfileText files;
  ProfileSources sources;
  sources.needs_datasets = false;
  sources.fallbacks.push_back({"model", "of-adapter", "adapter_config.json", true});
  EXPECT_EQ(load_profile(sources).profile.model.path, "of-adapter");
  sources.profiles = {files.write("profile.yaml", "model: of-file\n")};
  EXPECT_EQ(load_profile(sources).profile.model.path, "of-file");
}

TEST(Load, ALeadingTildeIsTheHomeFolder) {
  ProfileText files;
  files.environment["HOME"] = "/home/u";
  const Profile profile =
      files
          .load(
              "model: ~/m\ndatasets: [~/a.jsonl, {path: '~/b/*.jsonl'}, ./~/c]\neval_datasets: [~/v]\n"
              "chat_template: ~/t.jinja\ninit_adapter: ~/i\noutput_dir: ~/o\n"
              "resume_from_checkpoint: ~/r\nstage_dir: ~/s\ndataset_prepared_path: ~/d\n")
          .profile;
  EXPECT_EQ(profile.model.path, "/home/u/m");
  EXPECT_EQ(profile.data.datasets.at(0).path, "/home/u/a.jsonl");
  EXPECT_EQ(profile.data.datasets.at(1).path, "/home/u/b/*.jsonl");
  EXPECT_EQ(profile.data.datasets.at(2).path, "./~/c");
  EXPECT_EQ(profile.data.eval_datasets.at(0).path, "/home/u/v");
  EXPECT_EQ(profile.model.chat_template, "/home/u/t.jinja");
  EXPECT_EQ(profile.adapter.init_adapter, "/home/u/i");
  EXPECT_EQ(profile.run.output_dir, "/home/u/o");
  EXPECT_EQ(profile.run.resume_from_checkpoint, "/home/u/r");
  EXPECT_EQ(profile.data.stage_dir, "/home/u/s");
  EXPECT_EQ(profile.data.dataset_prepared_path, "/home/u/d");
}

TEST(Load, AnUnknownKeyWithoutAValueIsANote) {
  ProfileText files;
  const LoadedProfile loaded = files.load("seed: 1\nweigth_decay:\n");
  ASSERT_EQ(loaded.notes.size(), 1u);
  EXPECT_NE(loaded.notes[0].find("profile.yaml:2: weigth_decay: unknown key, which has no effect without a value. Did "
                                 "you mean \"weight_decay\"?"),
            std::string::npos)
      << loaded.notes[0];
}

TEST(Load, AllMistakesAreReportedTogetherInOrder) {
  ProfileText files;
  const std::string error = files.error("lora_r: x\nweigth_decay: 0\nseed: -1\nfp16: true\n", {"packing=perhaps"});
  const std::vector<std::string> places = {
      "profile.yaml:1: lora_r: got",
      "\nprofile.yaml:2: weigth_decay: unknown key. Did you mean \"weight_decay\"? "
      "All keys: docs/profile.md, or lora-train check --keys.",
      "\nprofile.yaml:3: seed: got", "\nprofile.yaml:4: fp16: is not supported", "\n--set: packing: got \"perhaps\""};
  std::size_t at = 0;
  for (const auto& place : places) {
    const std::size_t found = error.find(place, at);
    EXPECT_NE(found, std::string::npos) << place << "\n" << error;
    at = found == std::string::npos ? at : found;
  }
}

TEST(Load, OneCauseIsOneMistake) {
  ProfileText files;
  const std::string unset = files.error("lora_r: ${NOWHERE}\n");
  EXPECT_EQ(unset.find('\n'), std::string::npos) << unset;
  ProfileSources sources;
  sources.needs_datasets = false;
  sources.profiles = {files.write("p.yaml", "model: ${LORA_TRAIN_UNSET_VARIABLE}\n")};
  try {
    load_profile(sources);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find(": missing"), std::string::npos) << error.what();
  }
  EXPECT_EQ(files.error("zz: 1\n").find("Did you mean"), std::string::npos);
}

TEST(Load, TheErrorIsAUsageErrorAtTheFirstPlace) {
  ProfileText files;
  try {
    files.load("seed: 1\nlora_r: 0\n");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kUsage);
    EXPECT_TRUE(error.where().ends_with("profile.yaml:2")) << error.where();
    EXPECT_TRUE(error.message().starts_with("lora_r: got \"0\"")) << error.message();
  }
}

TEST(Load, AnUnknownNameNearAnAliasSuggestsTheKey) {
  ProfileText files;
  EXPECT_NE(files.error("max_lenght: 5\n").find("Did you mean \"max_seq_len\"?"), std::string::npos);
  EXPECT_EQ(files.error("qqqqqqqqqqqqqqqqq: 5\n").find("Did you mean"), std::string::npos);
}

TEST(Load, TwoNamesForOneThingInOneFileAreAMistake) {
  ProfileText files;
  EXPECT_EQ(files.error("lr: 1e-4\nlearning_rate: 1e-4\n").find("profile.yaml:2: learning_rate: means the same as lr "),
            0u);
  EXPECT_EQ(files.error("rank: 8\nr: 8\n").find("profile.yaml:2: r: means the same as rank (lora_r) at "), 0u);
  EXPECT_EQ(
      files.error("load_in_4bit: true\nbase_precision: nf4\n").find("profile.yaml:2: base_precision: means the same"),
      0u);
  EXPECT_EQ(
      files.error("load_in_4bit: true\nload_in_8bit: true\n").find("profile.yaml:2: load_in_8bit: means the same"), 0u);
}

TEST(Load, AcrossLayersTheLaterNameWins) {
  ProfileText files;
  const auto base = files.write("a.yaml", "lr: 1e-4\n");
  const auto top = files.write("b.yaml", "learning_rate: 5e-4\n");
  EXPECT_EQ(files.load_files({base, top}).profile.optimizer.learning_rate, 5e-4);
  EXPECT_EQ(files.load_files({top, base}).profile.optimizer.learning_rate, 1e-4);
  EXPECT_EQ(files.load_files({top}, {"lr=7e-4", "learning_rate=8e-4"}).profile.optimizer.learning_rate, 8e-4);
}

TEST(Load, AlternativesExcludeEachOtherInOneFile) {
  ProfileText files;
  EXPECT_EQ(files.error("gradient_accumulation_steps: 2\nglobal_batch_size: 4\n")
                .find("profile.yaml:2: global_batch_size: conflicts with gradient_accumulation_steps at "),
            0u);
  EXPECT_EQ(files.error("warmup_ratio: 0.1\nwarmup_steps: 4\n").find("profile.yaml:2: warmup_steps: conflicts with"),
            0u);
  EXPECT_EQ(
      files.error("val_set_size: 0.1\neval_datasets: [a]\n").find("profile.yaml:2: eval_datasets: conflicts with"), 0u);
  EXPECT_EQ(
      files.error("warmup_ratio: 0.1\nwarmup_steps: 0.2\n").find("profile.yaml:2: warmup_steps: means the same as"),
      0u);
  EXPECT_EQ(files.load("val_set_size: 0\neval_datasets: [a]\n").profile.data.eval_datasets.size(), 1u);
  EXPECT_EQ(files.load("global_batch_size: null\ngradient_accumulation_steps: 2\n")
                .profile.schedule.gradient_accumulation_steps,
            2);
}

TEST(Load, AlternativesReplaceEachOtherAcrossLayers) {
  ProfileText files;
  const auto base =
      files.write("a.yaml", "global_batch_size: 64\nwarmup_ratio: 0.1\neval_datasets: [a]\nload_in_4bit: true\n");
  const Profile profile = files
                              .load_files({base}, {"gradient_accumulation_steps=2", "warmup_steps=5",
                                                   "val_set_size=0.1", "base_precision=bf16"})
                              .profile;
  EXPECT_FALSE(profile.schedule.global_batch_size.has_value());
  EXPECT_EQ(profile.schedule.gradient_accumulation_steps, 2);
  EXPECT_EQ(profile.schedule.warmup_steps, 5);
  EXPECT_TRUE(profile.data.eval_datasets.empty());
  EXPECT_EQ(profile.data.val_set_size, 0.1);
  EXPECT_EQ(profile.model.base_precision, BasePrecision::kBf16);
  const auto top = files.write("b.yaml", "gradient_accumulation_steps: 2\nwarmup_steps: 5\nval_set_size: 3\n");
  const Profile back = files.load_files({top, base}).profile;
  EXPECT_EQ(back.schedule.global_batch_size, 64);
  EXPECT_FALSE(back.schedule.gradient_accumulation_steps.has_value());
  EXPECT_FALSE(back.schedule.warmup_steps.has_value());
  EXPECT_EQ(back.data.val_set_size, 0);
}

TEST(Load, ListsAreReplacedWhole) {
  ProfileText files;
  const auto base = files.write("a.yaml", "datasets: [{path: a, weight: 2}, {path: b}]\n");
  const auto top = files.write("b.yaml", "datasets: [{path: c}]\n");
  const Profile profile = files.load_files({base, top}).profile;
  ASSERT_EQ(profile.data.datasets.size(), 1u);
  EXPECT_EQ(profile.data.datasets[0].weight, 1);
}

TEST(Load, SettingsReachInsideAndAppend) {
  ProfileText files;
  const LoadedProfile loaded =
      files.load("datasets: [{path: a}]\nrank_pattern: {q_proj: 4}\n",
                 {"datasets[+].path=b", "datasets[0].weight=2", "datasets[1].type=text", "rank_pattern.v_proj=8",
                  "lora_target_modules=[q_proj, v_proj]", "run_name=a: b # c", "add_tokens=['<x>', \"<y>\"]",
                  "rank_pattern.q_proj=2"});
  const Profile& profile = loaded.profile;
  ASSERT_EQ(profile.data.datasets.size(), 2u);
  EXPECT_EQ(profile.data.datasets[0].weight, 2);
  EXPECT_EQ(profile.data.datasets[1].path, "b");
  EXPECT_EQ(profile.data.datasets[1].type, DatasetType::kText);
  EXPECT_EQ(profile.adapter.rank_pattern.size(), 2u);
  EXPECT_EQ(profile.adapter.rank_pattern[0].second, 2);
  EXPECT_EQ(profile.adapter.lora_target_modules.names.size(), 2u);
  EXPECT_EQ(profile.run.run_name, "a: b # c");
  EXPECT_EQ(profile.model.add_tokens, (std::vector<NewToken>{{"<x>", ""}, {"<y>", ""}}));
  EXPECT_EQ(loaded.origin.at("datasets"), "--set");
}

TEST(Load, SettingMistakesNameTheSetting) {
  ProfileText files;
  EXPECT_EQ(files.error("", {"datasets[2].path=x"}),
            "--set: datasets[2].path: there is no item 2: the list has 0. [+] appends one.");
  EXPECT_EQ(files.error("", {"datasets[0=x"}).find("--set: datasets[0: is not a place in a profile"), 0u);
  EXPECT_EQ(files.error("", {"train_data[0].path=x"}),
            "--set: train_data[0].path: to set a nested value, use the key's own name: datasets.");
  EXPECT_EQ(files.error("", {"lora_target_modules=[a"}).find("--set: lora_target_modules: not valid YAML"), 0u);
  EXPECT_EQ(files.error("", {"datasts[0].path=x"}).find("--set: datasts: unknown key. Did you mean \"datasets\"?"), 0u);
  for (const char* text : {"novalue", "=x", ""}) EXPECT_THROW(parse_override(text), ConfigError) << text;
  EXPECT_EQ(parse_override("a=b=c").value, "b=c");
}

TEST(Load, FlagsAreTakenAsTheyStand) {
  ProfileSources sources;
  sources.needs_datasets = false;
  sources.overrides = {flag_override("model", "[odd] ${name}", "--model")};
  const LoadedProfile loaded = load_profile(sources);
  EXPECT_EQ(loaded.profile.model.path, "[odd] ${name}");
  EXPECT_EQ(loaded.origin.at("model"), "--model");
}

TEST(Load, DefaultsFollowOtherKeys) {
  ProfileText files;
  const Profile steps = files.load("max_steps: 10\n").profile;
  EXPECT_FALSE(steps.schedule.num_epochs.has_value());
  EXPECT_EQ(files.load("max_steps: 10\nnum_epochs: 2\n").profile.schedule.num_epochs, 2);
  EXPECT_EQ(files.load("").profile.schedule.num_epochs, 3);
}

TEST(Load, GivenKeysTellSilenceFromTheDefault) {
  ProfileText files;
  const Profile profile = files.load("rank: 16\nlora_alpha: null\n", {"seed=42"}).profile;
  EXPECT_TRUE(profile.is_given("lora_r"));
  EXPECT_TRUE(profile.is_given("seed"));
  EXPECT_FALSE(profile.is_given("lora_alpha"));
  EXPECT_FALSE(profile.is_given("lora_dropout"));
}

TEST(Load, JsonAndYamlAreOne) {
  ProfileText files;
  const auto yaml =
      files.write("p.yaml", "lr: 2e-4\ndatasets:\n  - path: a\n    field_map: {text: body}\npacking: false\n");
  const auto json = files.write(
      "p.json", R"({"lr": 0.0002, "datasets": [{"path": "a", "field_map": {"text": "body"}}], "packing": false})");
  EXPECT_EQ(to_yaml(files.load_files({yaml}).profile), to_yaml(files.load_files({json}).profile));
  const auto bad = files.write("bad.json", "{\n  \"lora_r\": 8,\n  \"lora_rr\": 8\n}\n");
  EXPECT_EQ(files.error_of_files({bad}).find("bad.json:3: lora_rr: unknown key. Did you mean \"lora_r\"?"), 0u);
  const auto twice = files.write("twice.json", "{\n  \"lora_r\": 8,\n  \"lora_r\": 9\n}\n");
  EXPECT_EQ(files.error_of_files({twice}).find("twice.json:3: lora_r: occurs twice in one map"), 0u);
}

TEST(Merge, SilentValuesAreNoChoiceBetweenAlternatives) {
  EXPECT_TRUE(is_unset("warmup_steps", null_value()));
  EXPECT_TRUE(is_unset("val_set_size", text_value("0.0")));
  EXPECT_TRUE(is_unset("eval_datasets", list_value({})));
  EXPECT_FALSE(is_unset("warmup_steps", text_value("0")));
}

}  // namespace
}  // namespace lora_train
