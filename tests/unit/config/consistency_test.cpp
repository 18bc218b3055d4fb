#include "config/consistency.h"

#include <gtest/gtest.h>

#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

TEST(Consistency, TargetGpuIsOneOfTheTable) {
  const ProfileText files;
  ProfileSources sources;
  sources.needs_model = sources.needs_datasets = false;
  sources.why_not_gpu = [](const std::string& name) { return name == "h100" ? "" : "\"" + name + "\" is no GPU."; };
  const auto load = [&](const std::string& value) {
    sources.profiles = {files.write("p.yaml", "target_gpu: " + value + "\n")};
    try {
      return load_profile(sources).profile.run.target_gpu;
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(load("h100"), "h100");
  EXPECT_EQ(load("null"), "");
  EXPECT_NE(load("H101").find("p.yaml:1: target_gpu: \"H101\" is no GPU."), std::string::npos) << load("H101");
}

TEST(Consistency, ModelAndDatasetsAreRequired) {
  ProfileText files;
  ProfileSources sources;
  sources.profiles = {files.write("p.yaml", "seed: 1\n")};
  const auto message = [&] {
    try {
      load_profile(sources);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message().find("p.yaml: model: missing"), std::string::npos) << message();
  EXPECT_NE(message().find("p.yaml: datasets: missing"), std::string::npos) << message();
  sources.needs_datasets = false;
  EXPECT_EQ(message().find("datasets: missing"), std::string::npos);
  sources.overrides = {flag_override("model", "/m", "--model"), flag_override("train_data", "t.jsonl", "--train-data")};
  sources.needs_datasets = true;
  const LoadedProfile loaded = load_profile(sources);
  EXPECT_EQ(loaded.profile.data.datasets.at(0).path, "t.jsonl");
  EXPECT_EQ(loaded.origin.at("datasets"), "--train-data");
}

TEST(Consistency, Contradictions) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lr_scaling: sqrt\n", "profile.yaml:1: lr_scaling: needs lr_base_batch"},
      {"adapter: none\nbase_precision: nf4\n", "profile.yaml:2: base_precision: nf4 weights cannot be trained"},
      {"seed: 1\nbase_precision: fp32\n", "profile.yaml:2: base_precision: one other than precision is not built yet"},
      {"base_precision: bf16\nprecision: fp32\n", "profile.yaml:1: base_precision: one other than precision is not"},
      {"adapter: none\ninit_adapter: a\n", "profile.yaml:2: init_adapter: there is no adapter"},
      {"adapter: none\nloraplus_lr_ratio: 16\n", "profile.yaml:2: loraplus_lr_ratio: there are no B matrices"},
      {"adapter: none\nadd_tokens: [a]\n", "profile.yaml:2: add_tokens:"},
      {"token_init: description\nadd_tokens: [a]\n",
       "profile.yaml:2: add_tokens: \"a\" has no init_text. Expected one for each token"},
      {"add_tokens: [{token: a, init_text: b}]\n", "profile.yaml:1: add_tokens: \"a\" has an init_text."},
      {"add_tokens: [a, b,\n  a]\n", "profile.yaml:2: add_tokens[2]: \"a\" is listed twice"},
      {"add_tokens: [{token: a}, a]\n", "profile.yaml:1: add_tokens[1]: \"a\" is listed twice"},
      {"add_tokens: [\"\"]\n", "profile.yaml:1: add_tokens[0]: got"},
      {"add_tokens: [{init_text: a}]\n", "profile.yaml:1: add_tokens[0]: has no token"},
      {"add_tokens: [{token: \"\"}]\n", "profile.yaml:1: add_tokens[0].token: got"},
      {"add_tokens: [{token: a, text: b}]\n", "profile.yaml:1: add_tokens[0].text: unknown key"},
      {"load_best_model_at_end: true\n", "profile.yaml:1: load_best_model_at_end: needs evaluation data"},
      {"early_stopping_patience: 2\n", "profile.yaml:1: early_stopping_patience: needs evaluation data"},
      {"val_set_size: 1.5\n", "profile.yaml:1: val_set_size: a value of 1 or more is a number of documents"},
      {"eval_datasets: [{path: a, name: x}, {path: b, name: x}]\n",
       "profile.yaml:1: eval_datasets: two datasets are named \"x\""},
      {"eval_datasets: [{path: a, name: x, rows: 1}, {path: b, name: x}]\n",
       "profile.yaml:1: eval_datasets[0].rows: unknown key. Known here: path, split, subset, type, field_map, weight, "
       "name, max_samples.\nprofile.yaml:1: eval_datasets: two datasets are named \"x\""},
      {"num_epochs: null\n", "profile.yaml:1: num_epochs: not set, and neither is max_steps"},
      {"global_batch_size: null\n", "profile.yaml:1: global_batch_size: not set"},
  };
  ProfileText files;
  for (const auto& [text, expected] : cases) {
    const std::string error = files.error(text);
    EXPECT_TRUE(error.starts_with(expected)) << text << error;
  }
}

TEST(Consistency, APatienceOfAShippedProfileIsANoteWithoutEvaluationData) {
  ProfileText files;
  files.write("shipped/judged.yaml", "early_stopping_patience: 3\nload_best_model_at_end: true\n");
  const LoadedProfile loaded = files.load_files({"judged"});
  ASSERT_EQ(loaded.notes.size(), 2U);
  EXPECT_NE(loaded.notes[0].find("has no effect without evaluation data"), std::string::npos) << loaded.notes[0];
  EXPECT_THROW(files.load_files({"judged"}, {"early_stopping_patience=2"}), ConfigError);
}

TEST(Consistency, RequiredKeysWithoutAValueAreNamedWithTheirLine) {
  ProfileText files;
  for (const std::string none : {"", " []"}) {
    ProfileSources sources;
    sources.profiles = {files.write("p.yaml", "seed: 1\nmodel:\n\ndatasets:" + none + "\n")};
    try {
      load_profile(sources);
      FAIL();
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("p.yaml:2: model: missing"), std::string::npos) << text;
      EXPECT_NE(text.find("p.yaml:4: datasets: missing"), std::string::npos) << text;
    }
  }
}

TEST(Consistency, NothingIsConcludedFromAValueThatCouldNotBeRead) {
  ProfileText files;
  for (const char* text : {"load_best_model_at_end: true\nval_set_size: few\n", "lr_scaling: sqrt\nlr_base_batch: x\n",
                           "init_adapter: a\nadapter: x\n", "num_epochs: null\nmax_steps: x\n",
                           "global_batch_size: null\ngradient_accumulation_steps: x\n"}) {
    const std::string error = files.error(text);
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_NE(error.find("expected"), std::string::npos) << error;
  }
}

TEST(Consistency, ATeacherIsAServerOrAFolderAndComesBeforeItsMessages) {
  ProfileText files;
  for (const char* const good : {"teacher: http://host:8000/v1\n", "teacher: /models/big\nteacher_system: Be brief.\n",
                                 "teacher: null\nteacher_system: null\n"}) {
    EXPECT_EQ(files.error(good), "") << good;
  }
  EXPECT_NE(files.error("teacher: http://host:8000/v1/\n").find("expected a URL that ends in /v1"), std::string::npos);
  EXPECT_EQ(files.error("seed: 1\nstudent_system: Be brief.\n"),
            "profile.yaml:2: student_system: needs a teacher: a URL, or a model folder.");
}

TEST(Consistency, SettingsThatDoNothingAreWarnedOf) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lr_base_batch: 8\n", "lr_base_batch: has no effect without lr_scaling"},
      {"eval_steps: 50\n", "eval_steps: has no effect without evaluation data"},
      {"lr_scheduler_type: constant\nwarmup_ratio: 0.1\n",
       "warmup_ratio: has no effect with lr_scheduler_type: constant"},
      {"lr_scheduler_type: constant\nwarmup_steps: 10\n",
       "warmup_steps: has no effect with lr_scheduler_type: constant"},
      {"min_lr_ratio: 0.2\n", "min_lr_ratio: has no effect with lr_scheduler_type: cosine."},
      {"warmup_steps: 10\nmax_steps: 5\n", "warmup_steps: is larger than max_steps"},
  };
  ProfileText files;
  for (const auto& [text, expected] : cases) {
    const auto warnings = files.load(text).warnings;
    ASSERT_EQ(warnings.size(), 1u) << text;
    EXPECT_NE(warnings[0].find(expected), std::string::npos) << warnings[0];
  }
  EXPECT_TRUE(files.load("lr_scheduler_type: cosine_with_min_lr\nmin_lr_ratio: 0.2\n").warnings.empty());
  EXPECT_TRUE(files.load("lr_scheduler_type: constant\n").warnings.empty());
}

}  // namespace
}  // namespace lora_train
