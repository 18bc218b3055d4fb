#include "lora_train/config/keys/aliases.h"

#include <gtest/gtest.h>

#include <set>

#include "lora_train/config/keys/field.h"
#include "lora_train/config/load.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

// A value that the key takes and that is not its default.
std::string sample_value(const std::string& key) {
  static const std::map<std::string, std::string> samples = {{"model", "some/model"},
                                                             {"chat_template", "t.jinja"},
                                                             {"add_tokens", "[<a>]"},
                                                             {"token_init", "zeros"},
                                                             {"lora_r", "4"},
                                                             {"lora_target_modules", "[q_proj]"},
                                                             {"use_rslora", "true"},
                                                             {"init_adapter", "a/b"},
                                                             {"datasets", "[a.jsonl]"},
                                                             {"eval_datasets", "[b.jsonl]"},
                                                             {"val_set_size", "0.1"},
                                                             {"max_seq_len", "512"},
                                                             {"packing", "false"},
                                                             {"dataset_prepared_path", "c"},
                                                             {"micro_batch_size", "4"},
                                                             {"eval_micro_batch_size", "3"},
                                                             {"gradient_accumulation_steps", "5"},
                                                             {"num_epochs", "2"},
                                                             {"max_steps", "7"},
                                                             {"learning_rate", "1e-5"},
                                                             {"lr_scheduler_type", "linear"},
                                                             {"warmup_steps", "9"},
                                                             {"min_lr_ratio", "0.2"},
                                                             {"max_grad_norm", "0.5"},
                                                             {"optim", "adamw_8bit"},
                                                             {"adam_beta1", "0.8"},
                                                             {"adam_beta2", "0.95"},
                                                             {"adam_epsilon", "1e-6"},
                                                             {"seed", "1"},
                                                             {"double_quant", "false"},
                                                             {"gradient_checkpointing", "full"},
                                                             {"cuda_graphs", "off"},
                                                             {"eval_steps", "11"},
                                                             {"logging_steps", "12"},
                                                             {"save_steps", "13"},
                                                             {"save_total_limit", "14"},
                                                             {"output_dir", "runs/x"}};
  const auto found = samples.find(key);
  return found == samples.end() ? "" : found->second;
}

TEST(Aliases, EachStandsForAKnownKeyAndIsNoKeyItself) {
  std::set<std::string> seen;
  ASSERT_GT(aliases().size(), 90u);
  for (const Alias* alias : aliases()) {
    EXPECT_EQ(find_field(alias->name), nullptr) << alias->name;
    EXPECT_TRUE(seen.insert(alias->name).second) << alias->name << " twice";
    for (const auto& [key, value] : alias->rewrite(text_value("true")).entries)
      EXPECT_NE(find_field(key), nullptr) << alias->name;
  }
  for (const RefusedName& refused : refused_names()) {
    EXPECT_EQ(find_field(refused.name), nullptr) << refused.name;
    EXPECT_TRUE(seen.insert(refused.name).second) << refused.name << " twice";
  }
}

TEST(Aliases, OtherNamesGiveTheSameProfileWithOneNote) {
  ProfileText files;
  int count = 0;
  for (const Alias* each : aliases()) {
    const Alias& alias = *each;
    if (!alias.meaning.empty()) continue;
    ++count;
    const std::string value = sample_value(alias.key);
    ASSERT_FALSE(value.empty()) << alias.key;
    const LoadedProfile by_alias = files.load(alias.name + ": " + value + "\n");
    const LoadedProfile by_key = files.load(alias.key + ": " + value + "\n");
    EXPECT_EQ(to_yaml(by_alias.profile), to_yaml(by_key.profile)) << alias.name;
    EXPECT_NE(to_yaml(by_alias.profile), to_yaml(Profile{})) << alias.name;
    ASSERT_EQ(by_alias.notes.size(), 1u) << alias.name;
    EXPECT_NE(by_alias.notes[0].find("profile.yaml:1: " + alias.name + ": is read as " + alias.key), std::string::npos);
    EXPECT_TRUE(by_key.notes.empty()) << alias.key;
  }
  EXPECT_GT(count, 60);
}

struct Mapped {
  const char* given;
  const char* same_as;
};

TEST(Aliases, MappedNamesAndValues) {
  const std::vector<Mapped> cases = {
      {"load_in_4bit: true", "base_precision: nf4"},
      {"load_in_8bit: true", "base_precision: int8"},
      {"{load_in_4bit: true, load_in_8bit: false}", "base_precision: nf4"},
      {"load_in_4bit: false", "base_precision: auto"},
      {"qlora_bnb: true", "base_precision: nf4"},
      {"qlora_fp8: true", "base_precision: fp8"},
      {"quantization_bit: 4", "base_precision: nf4"},
      {"quantization_bit: 8", "base_precision: int8"},
      {"bf16: true", "precision: bf16"},
      {"bf16: auto", "precision: bf16"},
      {"bf16: false", "precision: fp32"},
      {"mixed_precision: bf16", "precision: bf16"},
      {"mixed_precision: \"no\"", "precision: fp32"},
      {"torch_dtype: float32", "precision: fp32"},
      {"dtype: bfloat16", "precision: bf16"},
      {"recipe: bf16", "precision: bf16"},
      {"use_peft: false", "adapter: none"},
      {"lora: true", "adapter: lora"},
      {"finetuning_type: full", "adapter: none"},
      {"fine_tune_type: lora", "adapter: lora"},
      {"adapter: qlora", "{adapter: lora, base_precision: nf4}"},
      {"{adapter: qlora, load_in_4bit: true}", "base_precision: nf4"},
      {"{adapter: qlora, load_in_8bit: true}", "base_precision: int8"},
      {"lora_target_linear: true", "lora_target_modules: all-linear"},
      {"lora_target: all", "lora_target_modules: all-linear"},
      {"lora_target_modules: [all]", "lora_target_modules: all-linear"},
      {"lora_target: \"q_proj,v_proj\"", "lora_target_modules: [q_proj, v_proj]"},
      {"assistant_only_loss: true", "loss_on: assistant"},
      {"completion_only_loss: true", "loss_on: completion"},
      {"completion_only_loss: false", "loss_on: all"},
      {"train_on_inputs: true", "loss_on: all"},
      {"train_on_inputs: false", "loss_on: auto"},
      {"train_on_prompt: true", "loss_on: all"},
      {"mask_prompt: false", "loss_on: all"},
      {"mask_history: true", "loss_on: last"},
      {"truncation_mode: keep_start", "overlength: truncate"},
      {"excess_length_strategy: raise", "overlength: error"},
      {"truncation_strategy: delete", "overlength: drop"},
      {"batch_size: 4", "micro_batch_size: 4"},
      {"disable_gradient_checkpointing: true", "gradient_checkpointing: off"},
      {"gradient_checkpointing: true", "gradient_checkpointing: full"},
      {"gradient_checkpointing: on", "gradient_checkpointing: full"},
      {"gradient_checkpointing: false", "gradient_checkpointing: off"},
      {"gradient_checkpointing: unsloth", "gradient_checkpointing: full"},
      {"metric_for_best_model: eval_mean_token_accuracy", "metric_for_best_model: token_accuracy"},
      {"cuda_graphs: true", "cuda_graphs: auto"},
      {"cuda_graphs: false", "cuda_graphs: off"},
      {"torch_compile: true", "cuda_graphs: auto"},
      {"torch_compile: false", "cuda_graphs: off"},
      {"compile: false", "cuda_graphs: off"},
      {"attn_implementation: eager", "attn_implementation: reference"},
      {"attn_implementation: sdpa", "attn_implementation: auto"},
      {"attn_implementation: flash_attention_2", "attn_implementation: auto"},
      {"flash_attention: true", "attn_implementation: auto"},
      {"use_flash_attention_2: true", "attn_implementation: auto"},
      {"flash_attn: fa2", "attn_implementation: fa2"},
      {"flash_attn: disabled", "attn_implementation: reference"},
      {"optim: paged_adamw_8bit", "optim: adamw_8bit"},
      {"optimizer: adamw_bnb_8bit", "optim: adamw_8bit"},
      {"eval_strategy: epoch", "eval_steps: epoch"},
      {"evaluation_strategy: \"no\"", "eval_steps: off"},
      {"{save_strategy: steps, save_steps: 50}", "save_steps: 50"},
      {"auto_resume_from_checkpoints: true", "resume_from_checkpoint: auto"},
      {"resume_from_checkpoint: false", "resume_from_checkpoint: none"},
      {"resume_from_checkpoint: true", "resume_from_checkpoint: auto"},
      {"use_tensorboard: false", "report_to: none"},
      {"warmup_steps: 0.1", "warmup_ratio: 0.1"},
      {"warmup: 0.1", "warmup_ratio: 0.1"},
      {"max_steps: -1", "max_steps: null"},
      {"train_data: a.jsonl", "datasets: [{path: a.jsonl}]"},
      {"{datasets: [{path: a, type: prompt-completion}]}", "datasets: [{path: a, type: prompt_completion}]"},
      {"{datasets: [{path: a, type: chat_template}]}", "datasets: [{path: a, type: messages}]"},
  };
  ProfileText files;
  for (const auto& [given, same_as] : cases) {
    EXPECT_EQ(to_yaml(files.load(given).profile), to_yaml(files.load(same_as).profile)) << given;
  }
}

TEST(Aliases, AMappedNameOverridesAnEarlierLayer) {
  ProfileText files;
  const auto base = files.write("base.yaml", "load_in_4bit: true\ngradient_checkpointing: full\n");
  const auto top = files.write("top.yaml", "load_in_4bit: false\ndisable_gradient_checkpointing: true\n");
  const Profile profile = files.load_files({base, top}).profile;
  EXPECT_EQ(profile.model.base_precision, BasePrecision::kAuto);
  EXPECT_EQ(profile.run.gradient_checkpointing, GradientCheckpointing::kOff);
  EXPECT_EQ(files.load_files({base}, {"load_in_8bit=true"}).profile.model.base_precision, BasePrecision::kInt8);
  EXPECT_EQ(files.load_files({base}, {"load_in_8bit=false"}).profile.model.base_precision, BasePrecision::kNf4);
}

TEST(Aliases, AskingForTheDefaultTakesBackAnEarlierLayer) {
  ProfileText files;
  const auto base = files.write("base.yaml", "train_on_inputs: true\nsave_strategy: epoch\nmask_history: null\n");
  const Profile profile = files.load_files({base}, {"train_on_inputs=false", "save_strategy=steps"}).profile;
  EXPECT_EQ(profile.data.loss_on, LossOn::kAuto);
  EXPECT_EQ(profile.run.save_steps, Profile{}.run.save_steps);
  EXPECT_EQ(files.load_files({base}, {"mask_history=false"}).profile.data.loss_on, LossOn::kAll);
}

TEST(Aliases, BareBatchSizeWarns) {
  ProfileText files;
  const LoadedProfile loaded = files.load("batch_size: 4\n");
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].find("profile.yaml:1: batch_size: is read as micro_batch_size"), std::string::npos);
}

TEST(Aliases, WrongWordsAreRefusedWithTheKey) {
  ProfileText files;
  EXPECT_EQ(files.error("use_peft: maybe\n"),
            "profile.yaml:1: use_peft: got maybe, expected true or false. Its key here is adapter.");
  EXPECT_EQ(files.error("mixed_precision: fp16\n"),
            "profile.yaml:1: mixed_precision: got fp16, expected bf16 | bfloat16 | auto | fp32 | float32 | no. Its key "
            "here is "
            "precision.");
  EXPECT_NE(files.error("truncation_mode: keep_end\n").find("expected keep_start"), std::string::npos);
  EXPECT_NE(files.error("load_in_4bit: 4\n").find("load_in_4bit: got 4, expected true or false."), std::string::npos);
}

TEST(RefusedNames, EachHasItsReasonUnlessHarmless) {
  ProfileText files;
  for (const RefusedName& refused : refused_names()) {
    EXPECT_EQ(files.error(refused.name + ": something\n"), "profile.yaml:1: " + refused.name + ": " + refused.reason);
    EXPECT_EQ(files.load(refused.name + ": false\n").notes.size(), 1u) << refused.name;
    EXPECT_EQ(files.load(refused.name + ": null\n").notes.size(), 1u) << refused.name;
  }
  EXPECT_NE(files.error("fp16: true\n").find("Use precision: bf16."), std::string::npos);
  EXPECT_EQ(files.load("quant_type: nf4\n").notes.size(), 1u);
}

std::string message_of(ProfileSources sources) {
  sources.needs_model = sources.needs_datasets = true;
  sources.tool_of_key = [](const std::string& key) { return key.starts_with("theirs") ? "Theirs" : ""; };
  Findings findings;
  load_profile(sources, findings);
  try {
    findings.throw_mistakes();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ForeignKeys, AFileWithKeysOfAnotherToolIsToldSoOnce) {
  ProfileText files;
  ProfileSources sources;
  sources.profiles = {files.write("one.yaml", "lora_r: 8\ntheirs: 1\ntheirs_too: null\n")};
  const std::string file = sources.profiles.front();
  EXPECT_EQ(message_of(sources), file + ":2: theirs is a key of Theirs: run `lora-train convert " + file + "`.");
  files.write("one.yaml",
              "lora_r: 8\ntheirs1: 1\ntheirs2: 1\ntheirs3: 1\ntheirs4: 1\ntheirs5: 1\ntheirs6: 1\nlora_rr: 1\n");
  const std::string message = message_of(sources);
  EXPECT_TRUE(message.starts_with(file +
                                  ":2: theirs1, theirs2, theirs3, theirs4 and 2 more are keys of Theirs: run "
                                  "`lora-train convert " +
                                  file + "`.\n" + file + ":8: lora_rr: unknown key."))
      << message;
  sources.profiles.clear();
  sources.overrides = {parse_override("theirs=1")};
  EXPECT_NE(message_of(sources).find("is a key of Theirs: run `lora-train convert FILE`."), std::string::npos);
}

}  // namespace
}  // namespace lora_train
