// A profile back to text, hashes and differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "support/temporary_folder.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

const char* const kRich = R"({
  model: "/m/a: b ${HOME}", eval_datasets: [e.jsonl], max_seq_len: 512, report_to: none, precision: fp32,
  datasets: [{path: "a b.jsonl", type: text, field_map: {system: null, text: "my: body"}, weight: 0.5, name: "n#1"}, c.jsonl],
  add_tokens: [{token: "<a>", init_text: "a: b"}, {token: "true", init_text: "12"}, {token: "12", init_text: c}],
  token_init: description, lora_target_modules: [q_proj, "v, proj"], rank_pattern: {"layers.0.*q_proj": 4, b: 2},
  alpha_pattern: {b: 0.1}, lora_alpha: 12.5, learning_rate: 3.3e-5, adam_epsilon: 1e-8, warmup_steps: 7,
  gradient_accumulation_steps: 3, max_steps: 100, max_time: 90, gradient_checkpointing: off, save_interval: 2h30m,
  save_total_limit: null, save_steps: epoch, eval_steps: 0.05, resume_from_checkpoint: false,
  output_dir: "runs/{lora_alpha}", run_name: "on"})";

TEST(Write, YamlAndJsonReadBackToTheSameProfile) {
  ProfileText files;
  files.environment["HOME"] = "$${kept}";
  for (const std::string& text :
       {std::string(kRich), std::string(), std::string("init_adapter: a/b\nlora_r: 4\n"),
        std::string("val_set_size: 0.1\nlora_target_modules: '.*(q|v)'\nnum_epochs: 0.5\n")}) {
    const LoadedProfile first = files.load(text);
    const LoadedProfile again = files.load_files({files.write("again.yaml", to_yaml(first))});
    EXPECT_EQ(to_yaml(again.profile), to_yaml(first.profile));
    EXPECT_EQ(to_json(again.profile), to_json(first.profile));
    EXPECT_EQ(profile_hash(again.profile), profile_hash(first.profile));
    EXPECT_TRUE(diff_profiles(first.profile, again.profile).empty());
    EXPECT_TRUE(again.notes.empty() && again.warnings.empty());
  }
}

TEST(Write, TheProfileOfARunIsReadAsItStands) {
  const testing_support::TemporaryFolder folder;
  const auto file = folder / "profile.yaml";
  const auto read = [&](const std::string& text) {
    write_file_atomic(file, text);
    return load_written_profile(file);
  };
  const Profile profile =
      read("model: ~/m\ndatasets: [d.jsonl]\nrun_name: \"${HOME} $${HOME}\"\noutput_dir: \"x/{seed}\"\n");
  EXPECT_EQ(profile.run.run_name, "${HOME} ${HOME}");
  EXPECT_EQ(profile.model.path, "~/m");
  EXPECT_EQ(profile.run.output_dir, "x/{seed}");
  write_file_atomic(folder / "secret.yaml", "seed: 7\n");
  EXPECT_THROW(read("extends: secret.yaml\nmodel: m\ndatasets: [d.jsonl]\n"), ConfigError);
  write_file_atomic(file, to_yaml(profile));
  EXPECT_EQ(profile_hash(load_written_profile(file)), profile_hash(profile));
}

TEST(Write, MembersSurviveTheRoundTrip) {
  ProfileText files;
  files.environment["HOME"] = "h";
  const Profile first = files.profile(kRich);
  const Profile again = files.load_files({files.write("again.yaml", to_yaml(first))}).profile;
  EXPECT_EQ(first.model.path, "/m/a: b h");
  EXPECT_EQ(again.model.path, first.model.path);
  EXPECT_EQ(again.data.datasets, first.data.datasets);
  EXPECT_EQ(again.adapter.lora_target_modules, first.adapter.lora_target_modules);
  EXPECT_EQ(again.adapter.rank_pattern, first.adapter.rank_pattern);
  EXPECT_EQ(again.run.eval_steps, first.run.eval_steps);
  EXPECT_EQ(again.run.save_interval, 9000);
  EXPECT_EQ(again.schedule.max_time, 90);
  EXPECT_EQ(again.optimizer.learning_rate, 3.3e-5);
  EXPECT_FALSE(again.schedule.num_epochs || again.schedule.global_batch_size);
  EXPECT_EQ(again.model.add_tokens, first.model.add_tokens);
  EXPECT_EQ(again.run.output_dir, "runs/12.5");
  EXPECT_EQ(again.run.run_name, "on");
}

TEST(Write, SilenceUnderAnInitAdapterStaysSilence) {
  ProfileText files;
  const LoadedProfile first = files.load("init_adapter: a/b\nlora_alpha: 8\n");
  EXPECT_EQ(first.origin.at("lora_r"), "follows init_adapter");
  EXPECT_NE(to_yaml(first.profile).find("\nlora_r: null\n"), std::string::npos);
  const Profile again = files.load_files({files.write("again.yaml", to_yaml(first))}).profile;
  EXPECT_FALSE(again.is_given("lora_r"));
  EXPECT_TRUE(again.is_given("lora_alpha"));
}

TEST(Write, CommentsSayWhereValuesCameFrom) {
  ProfileText files;
  const std::string yaml = to_yaml(files.load("lora_r: 4\n", {"seed=1"}));
  EXPECT_NE(yaml.find("profile.yaml:1\n", yaml.find("lora_r: 4 ")), std::string::npos);
  EXPECT_NE(yaml.find("# --set\n", yaml.find("seed: 1 ")), std::string::npos);
  EXPECT_NE(yaml.find("# default\n", yaml.find("optim: adamw_torch ")), std::string::npos);
}

TEST(Write, JsonHasEveryKeyWithItsType) {
  ProfileText files;
  files.environment["HOME"] = "h";
  const auto json = nlohmann::json::parse(to_json(files.profile(kRich)));
  ASSERT_EQ(json.size(), profile_keys().size());
  for (const auto& key : profile_keys()) EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_TRUE(json["learning_rate"].is_number_float());
  EXPECT_TRUE(json["lora_r"].is_number_integer());
  EXPECT_TRUE(json["packing"].is_boolean());
  EXPECT_TRUE(json["warmup_ratio"].is_null());
  EXPECT_TRUE(json["report_to"].is_array());
  EXPECT_EQ(json["datasets"][0]["field_map"]["text"], "my: body");
  EXPECT_TRUE(json["datasets"][0]["field_map"]["system"].is_null());
  EXPECT_EQ(json["eval_steps"], 0.05);
  EXPECT_EQ(json["save_steps"], "epoch");
  EXPECT_EQ(json["add_tokens"][0]["init_text"], "a: b");
  EXPECT_EQ(json["add_tokens"][2]["token"], "12");
}

TEST(Write, HashesDifferWithAnyValue) {
  Profile a, b;
  EXPECT_EQ(profile_hash(a), profile_hash(b));
  EXPECT_EQ(profile_hash(a).size(), 32u);
  b.run.seed = 43;
  EXPECT_NE(profile_hash(a), profile_hash(b));
  b = a;
  b.given_keys = {"seed"};
  EXPECT_EQ(profile_hash(a), profile_hash(b));
}

TEST(Write, DifferencesSayWhatMayDifferOnResume) {
  Profile before, after;
  before.schedule.num_epochs = 3;
  after.schedule.num_epochs = 5;
  after.run.logging_steps = 10;
  after.optimizer.learning_rate = 1e-3;
  std::vector<std::string> differences;
  for (const auto& [key, old_value, new_value, is_allowed] : diff_profiles(before, after))
    differences.push_back(fmt::format("{} {} {} {}", key, old_value, new_value, is_allowed));
  std::sort(differences.begin(), differences.end());
  EXPECT_EQ(differences, (std::vector<std::string>{"learning_rate 0.0002 0.001 false", "logging_steps 1 10 true",
                                                   "num_epochs 3 5 true"}));
}

TEST(Write, LimitsMayBeRaisedOnly) {
  const auto allowed = [](std::optional<std::int64_t> from, std::optional<std::int64_t> to) {
    Profile before, after;
    before.schedule.max_steps = from;
    after.schedule.max_steps = to;
    return diff_profiles(before, after).at(0).allowed_on_resume;
  };
  EXPECT_TRUE(allowed(100, 200));
  EXPECT_TRUE(allowed(100, std::nullopt));
  EXPECT_FALSE(allowed(200, 100));
  EXPECT_FALSE(allowed(std::nullopt, 100));
}

}  // namespace
}  // namespace lora_train
