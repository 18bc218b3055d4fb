#include "lora_train/config/keys/aliases.h"

#include <gtest/gtest.h>

#include <set>

#include "lora_train/config/keys/field.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"
#include "support/refusal.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using namespace testing_support;

// For each key a value that it takes and that is not its default.
constexpr const char* kSamples = R"({
  model: some/model, chat_template: t.jinja, add_tokens: [<a>], token_init: zeros, lora_r: 4, lora_target_modules: [q_proj],
  use_rslora: true, init_adapter: a/b, datasets: [a.jsonl], eval_datasets: [b.jsonl], val_set_size: 0.1, max_seq_len: 512,
  packing: false, dataset_prepared_path: c, micro_batch_size: 4, eval_micro_batch_size: 3, gradient_accumulation_steps: 5,
  num_epochs: 2, max_steps: 7, learning_rate: 1e-5, lr_scheduler_type: linear, warmup_steps: 9, min_lr_ratio: 0.2,
  max_grad_norm: 0.5, optim: adamw_8bit, adam_beta1: 0.8, adam_beta2: 0.95, adam_epsilon: 1e-6, seed: 1, double_quant: false,
  gradient_checkpointing: full, cuda_graphs: off, eval_steps: 11, logging_steps: 12, save_steps: 13, save_total_limit: 14,
  output_dir: runs/x})";

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
  const ProfileText files;
  const Value samples = parse_yaml(kSamples, {"samples", 0});
  int count = 0;
  for (const Alias* each : aliases()) {
    const Alias& alias = *each;
    if (!alias.meaning.empty()) continue;
    ++count;
    const Value* const sample = samples.find(alias.key);
    ASSERT_NE(sample, nullptr) << alias.key;
    const std::string value = sample->is_list() ? to_flow_yaml(*sample) : sample->text;
    const LoadedProfile by_alias = files.load(alias.name + ": " + value + "\n");
    const LoadedProfile by_key = files.load(alias.key + ": " + value + "\n");
    EXPECT_EQ(to_yaml(by_alias.profile), to_yaml(by_key.profile)) << alias.name;
    EXPECT_NE(to_yaml(by_alias.profile), to_yaml(Profile{})) << alias.name;
    expect_one(by_alias.notes, "profile.yaml:1: " + alias.name + ": is read as " + alias.key);
    EXPECT_TRUE(by_key.notes.empty()) << alias.key;
  }
  EXPECT_GT(count, 60);
}

TEST(Aliases, MappedNamesAndValues) {
  // A key with its value, and what means the same, beside each other.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"base_precision: nf4", "load_in_4bit: true | qlora_bnb: true | quantization_bit: 4"},
      {"base_precision: nf4", "{load_in_4bit: true, load_in_8bit: false} | {adapter: qlora, load_in_4bit: true}"},
      {"base_precision: int8", "load_in_8bit: true | quantization_bit: 8 | {adapter: qlora, load_in_8bit: true}"},
      {"base_precision: auto", "load_in_4bit: false"},
      {"base_precision: fp8", "qlora_fp8: true"},
      {"precision: bf16", "bf16: true | bf16: auto | mixed_precision: bf16 | dtype: bfloat16 | recipe: bf16"},
      {"precision: fp32", "bf16: false | bf16: no | mixed_precision: \"no\" | torch_dtype: float32"},
      {"adapter: none", "use_peft: false | finetuning_type: full"},
      {"adapter: lora", "lora: true | fine_tune_type: lora"},
      {"{adapter: lora, base_precision: nf4}", "adapter: qlora"},
      {"lora_target_modules: all-linear", "lora_target_linear: true | lora_target: all | lora_target_modules: [all]"},
      {"lora_target_modules: [q_proj, v_proj]", "lora_target: \"q_proj,v_proj\""},
      {"loss_on: assistant", "assistant_only_loss: true"},
      {"loss_on: completion", "completion_only_loss: true"},
      {"loss_on: all",
       "completion_only_loss: false | train_on_inputs: true | train_on_prompt: true | mask_prompt: false"},
      {"loss_on: auto", "train_on_inputs: false"},
      {"loss_on: last", "mask_history: true"},
      {"overlength: truncate", "truncation_mode: keep_start"},
      {"overlength: error", "excess_length_strategy: raise"},
      {"overlength: drop", "truncation_strategy: delete"},
      {"micro_batch_size: 4", "batch_size: 4"},
      {"gradient_checkpointing: off", "disable_gradient_checkpointing: true | gradient_checkpointing: false"},
      {"gradient_checkpointing: full",
       "gradient_checkpointing: true | gradient_checkpointing: on | gradient_checkpointing: unsloth"},
      {"metric_for_best_model: token_accuracy", "metric_for_best_model: eval_mean_token_accuracy"},
      {"cuda_graphs: auto", "cuda_graphs: true | torch_compile: true"},
      {"cuda_graphs: off", "cuda_graphs: false | torch_compile: false | compile: false"},
      {"attn_implementation: reference", "attn_implementation: eager | flash_attn: disabled"},
      {"attn_implementation: auto",
       "attn_implementation: sdpa | attn_implementation: flash_attention_2 | flash_attention: true | "
       "use_flash_attention_2: true"},
      {"attn_implementation: fa2", "flash_attn: fa2"},
      {"optim: adamw_8bit", "optim: paged_adamw_8bit | optimizer: adamw_bnb_8bit"},
      {"eval_steps: epoch", "eval_strategy: epoch"},
      {"eval_steps: off", "evaluation_strategy: \"no\""},
      {"save_steps: 50", "{save_strategy: steps, save_steps: 50}"},
      {"resume_from_checkpoint: auto", "auto_resume_from_checkpoints: true | resume_from_checkpoint: true"},
      {"resume_from_checkpoint: none", "resume_from_checkpoint: false"},
      {"report_to: none", "use_tensorboard: false"},
      {"warmup_ratio: 0.1", "warmup_steps: 0.1 | warmup: 0.1"},
      {"max_steps: null", "max_steps: -1"},
      {"datasets: [{path: a.jsonl}]", "train_data: a.jsonl"},
      {"{datasets: [{path: a, type: prompt_completion}]}", "{datasets: [{path: a, type: prompt-completion}]}"},
      {"{datasets: [{path: a, type: messages}]}", "{datasets: [{path: a, type: chat_template}]}"},
  };
  const ProfileText files;
  for (const auto& [key, all] : cases) {
    const std::string expected = to_yaml(files.profile(key));
    for (std::size_t begin = 0, end = 0; end != all.npos; begin = end + 3) {
      end = all.find(" | ", begin);
      const std::string given = all.substr(begin, end - begin);
      EXPECT_EQ(to_yaml(files.profile(given)), expected) << given;
    }
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
  expect_one(ProfileText().load("batch_size: 4\n").warnings, "profile.yaml:1: batch_size: is read as micro_batch_size");
}

TEST(Aliases, WrongWordsAreRefusedWithTheKey) {
  expect_mistakes({
      {"use_peft: maybe", "profile.yaml:1: use_peft: got maybe, expected true or false. Its key here is adapter."},
      {"mixed_precision: fp16",
       "profile.yaml:1: mixed_precision: got fp16, expected bf16 | bfloat16 | auto | fp32 | float32 | no."},
      {"truncation_mode: keep_end", "profile.yaml:1: truncation_mode: ", "expected keep_start"},
      {"load_in_4bit: 4", "profile.yaml:1: load_in_4bit: got 4, expected true or false."},
  });
}

TEST(RefusedNames, EachHasItsReasonUnlessHarmless) {
  ProfileText files;
  for (const RefusedName& refused : refused_names()) {
    EXPECT_EQ(files.error(refused.name + ": something\n"), "profile.yaml:1: " + refused.name + ": " + refused.reason);
    EXPECT_EQ(files.load(refused.name + ": false\n").notes.size(), 1u) << refused.name;
    EXPECT_EQ(files.load(refused.name + ": null\n").notes.size(), 1u) << refused.name;
  }
  EXPECT_NE(files.error("fp16: true\n").find("Use precision: bf16."), std::string::npos);
  for (const char* line : {"quant_type: nf4", "context_parallel_size: 1", "beta: 0.10", "label_smoothing: 0.0",
                           "router_aux_loss_coef: 0", "base_placement: auto"})
    EXPECT_EQ(files.load(std::string(line) + "\n").notes.size(), 1u) << line;
}

TEST(RefusedNames, TheReservedKeysOfTheContractAreAmongThem) {
  const ProfileText files;
  for (const char* line : {"base_placement: sharded", "base_placement: device", "base_shard_size: 2",
                           "host_memory_gib: 64", "context_parallel_size: 2", "fp8_products: forward",
                           "fp8_linears: mlp", "lora_expert_r: 8", "router_aux_loss_coef: 0.001",
                           "neftune_noise_alpha: 5", "layers_to_transform: [1]", "exclude_modules: [lm_head]"})
    EXPECT_SAYS(files.error(std::string(line) + "\n"), ": is not built yet. Remove it.") << line;
  for (const char* line :
       {"beta: 0.2", "label_smoothing: 0.1", "simpo_gamma: 1", "orpo_alpha: 1", "desirable_weight: 2",
        "undesirable_weight: 0", "sft_weight: 1", "ld_alpha: 0.5", "precompute_ref_log_probs: true"})
    EXPECT_SAYS(files.error(std::string(line) + "\n"), ": is preference training, which is not built yet.") << line;
  for (const char* loss :
       {"sigmoid", "DPO", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm", "apo_zero", "simpo", "orpo", "kto"})
    EXPECT_EQ(files.error(std::string("loss_type: ") + loss + "\n"),
              std::string("profile.yaml:1: loss_type: ") + loss +
                  " is preference training, which is not built yet. Use nll on the chosen answers.");
  const auto nested = [&] { files.load("", {"layers_to_transform[0]=1"}); };
  EXPECT_SAYS(files.error_of(nested), "layers_to_transform: is not built yet.");
}

TEST(ForeignKeys, AFileWithKeysOfAnotherToolIsToldSoOnce) {
  const ProfileText files;
  ProfileSources sources;
  sources.tool_of_key = [](const std::string& key) { return key.starts_with("theirs") ? "Theirs" : ""; };
  const auto message = [&] { return files.error_of([&] { load_profile(sources); }); };
  sources.profiles = {files.write("one.yaml", "lora_r: 8\ntheirs: 1\ntheirs_too: null\n")};
  EXPECT_EQ(message(), "one.yaml:2: theirs is a key of Theirs: run `lora-train convert one.yaml`.");
  files.write("one.yaml",
              "lora_r: 8\ntheirs1: 1\ntheirs2: 1\ntheirs3: 1\ntheirs4: 1\ntheirs5: 1\ntheirs6: 1\nlora_rr: 1\n");
  expect_mistake(
      message(),
      "one.yaml:2: theirs1, theirs2, theirs3, theirs4 and 2 more are keys of Theirs: run `lora-train convert "
      "one.yaml`.\none.yaml:8: lora_rr: unknown key.");
  sources.profiles.clear();
  sources.overrides = {parse_override("theirs=1")};
  expect_mistake(message(), "", "is a key of Theirs: run `lora-train convert FILE`.");
}

}  // namespace
}  // namespace lora_train
