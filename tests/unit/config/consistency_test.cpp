#include "config/consistency.h"

#include <gtest/gtest.h>

#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using namespace testing_support;

TEST(Consistency, TargetGpuIsOneOfTheTable) {
  const ProfileText files;
  ProfileSources sources;
  sources.needs_model = sources.needs_datasets = false;
  sources.why_not_gpu = [](const std::string& name) { return name == "h100" ? "" : "\"" + name + "\" is no GPU."; };
  std::string gpu;
  const auto error = [&](const std::string& value) {
    sources.profiles = {files.write("p.yaml", "target_gpu: " + value + "\n")};
    return files.error_of([&] { gpu = load_profile(sources).profile.run.target_gpu; });
  };
  EXPECT_EQ(error("h100") + gpu, "h100");
  EXPECT_EQ(error("null") + gpu, "");
  expect_mistake(error("H101"), "p.yaml:1: target_gpu: \"H101\" is no GPU.");
}

TEST(Consistency, ModelAndDatasetsAreRequired) {
  const ProfileText files;
  ProfileSources sources;
  const auto message = [&](const std::string& text) {
    sources.profiles = {files.write("p.yaml", text)};
    return files.error_of([&] { load_profile(sources); });
  };
  for (const std::string none : {"", " []"}) {
    const std::string error = message("seed: 1\nmodel:\n\ndatasets:" + none + "\n");
    expect_mistake(error, "p.yaml:2: model: missing", "p.yaml:4: datasets: missing");
  }
  expect_mistake(message("seed: 1\n"), "p.yaml: model: missing", "p.yaml: datasets: missing");
  sources.needs_datasets = false;
  EXPECT_EQ(message("seed: 1\n").find("datasets: missing"), std::string::npos);
  sources.overrides = {flag_override("model", "/m", "--model"), flag_override("train_data", "t.jsonl", "--train-data")};
  sources.needs_datasets = true;
  const LoadedProfile loaded = load_profile(sources);
  EXPECT_EQ(loaded.profile.data.datasets.at(0).path, "t.jsonl");
  EXPECT_EQ(loaded.origin.at("datasets"), "--train-data");
}

TEST(Consistency, Contradictions) {
  expect_mistakes({
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
       "name, max_samples, null_fields.\nprofile.yaml:1: eval_datasets: two datasets are named \"x\""},
      {"num_epochs: null\n", "profile.yaml:1: num_epochs: not set, and neither is max_steps"},
      {"global_batch_size: null\n", "profile.yaml:1: global_batch_size: not set"},
      {"teacher: http://host:8000/v1/\n", "profile.yaml:1: teacher: ", "expected a URL that ends in /v1"},
      {"seed: 1\nstudent_system: Be brief.\n",
       "profile.yaml:2: student_system: needs a teacher: a URL, or a model folder."},
  });
  for (const std::string good : {"teacher: http://host:8000/v1\n", "teacher: /models/big\nteacher_system: Be brief.\n",
                                 "teacher: null\nteacher_system: null\n"}) {
    EXPECT_EQ(ProfileText().error(good), "") << good;
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
      {"confidence_tokens: {<c0>: 0, <c1>: 1}\n", "confidence_tokens: has no effect without an entry of eval_tasks"},
  };
  ProfileText files;
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text);
    expect_one(files.load(text).warnings, expected);
  }
  EXPECT_TRUE(files.load("lr_scheduler_type: cosine_with_min_lr\nmin_lr_ratio: 0.2\n").warnings.empty());
  EXPECT_TRUE(files.load("lr_scheduler_type: constant\n").warnings.empty());
}

TEST(OutputFolder, KeysAreReplacedByTheirValues) {
  const ProfileText files;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\"runs/lr{learning_rate}-r{lora_r}\"\nlr: 2e-4\n", "runs/lr0.0002-r16"},
      {"\"{precision}/{packing}/{max_steps}\"\n", "bf16/true/none"},
      {"\"runs/{model}\"\nmodel: Qwen/Qwen3-4B\n", "runs/Qwen-Qwen3-4B"},
      {"\"runs/{model}\"\nmodel: /models/Qwen3-4B/\n", "runs/Qwen3-4B"},
      {"runs/plain\n", "runs/plain"},
  };
  for (const auto& [text, folder] : cases) EXPECT_EQ(files.profile("output_dir: " + text).run.output_dir, folder);
  EXPECT_EQ(files.profile("output_dir: \"r{lora_r}\"\n", {"lora_r=4"}).run.output_dir, "r4");
}

TEST(OutputFolder, UnknownKeysAndListsAreMistakes) {
  expect_mistakes({
      {"seed: 1\noutput_dir: \"r{lora_rr}\"\n",
       "profile.yaml:2: output_dir: {lora_rr} is not a key. Expected a key with a single value, such as "
       "{learning_rate}. "
       "Did you mean \"lora_r\"?"},
      {"output_dir: \"{datasets}\"\n", "profile.yaml:1: output_dir: {datasets} is a list or a map"},
      {"output_dir: \"{output_dir}\"\n", "profile.yaml:1: output_dir: ", "is not a key"},
      {"output_dir: \"r{lora_r\"\n", "profile.yaml:1: output_dir: ", "has no closing brace"},
      // The folder would be another one when the written profile is read again.
      {"output_dir: \"{run_name}/x\"\nrun_name: \"a{seed}\"\n", "profile.yaml:1: ", "cannot contain a brace"},
      {"output_dir: \"{run_name}/x\"\nrun_name: \"~\"\n", "profile.yaml:1: ", "leads to another folder"},
      {"output_dir: \"runs/{run_name}\"\nrun_name: \"..\"\n", "profile.yaml:1: ", "leads to another folder"},
  });
}

}  // namespace
}  // namespace lora_train
