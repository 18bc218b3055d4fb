// What each kind of value takes and refuses.
#include <gtest/gtest.h>

#include <set>

#include "config/keys/field_kinds.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/load.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using namespace testing_support;

// The keys that users were promised.
constexpr const char* kContractKeys =
    "activation_offload adam_beta1 adam_beta2 adam_epsilon adapter add_tokens alpha_pattern attn_implementation "
    "base_model_name base_precision batch_unit chat_template check_ranks confidence_tokens cuda_graphs "
    "dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor dataset_prepared_path datasets "
    "decoded_layers deterministic device double_quant drop_duplicates early_stopping_patience "
    "early_stopping_threshold eval_datasets eval_max_samples eval_micro_batch_size eval_on_start eval_steps "
    "eval_tasks global_batch_size gpu_price_per_hour gradient_accumulation_steps gradient_checkpointing "
    "greater_is_better init_adapter kd_alpha kd_temperature kernels learning_rate load_best_model_at_end "
    "logging_steps lora_alpha lora_dropout lora_r lora_target_modules loraplus_lr_ratio loss_on loss_type "
    "lr_base_batch lr_scaling lr_scheduler_type max_drop_fraction max_failed_saves max_grad_norm max_seq_len "
    "max_steps max_time metric_for_best_model micro_batch_size min_lr_ratio mlp_tile_tokens model num_epochs "
    "on_bad_row optim output_dir overlength packing precision rank_pattern report_to resume_from_checkpoint run_name "
    "save_dtype save_interval save_steps save_total_limit seed shuffle stage_dir student_system target_gpu teacher "
    "teacher_system template_date tf32 thinking token_init tuning use_rslora val_set_size warmup_ratio warmup_steps "
    "weight_decay";

/// The names of the fields for which `is_one` is true, sorted, with a space between.
std::string names_of(bool (*is_one)(const Field& field)) {
  std::set<std::string> names;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      if (is_one(field)) names.insert(field.name);
    }
  }
  return join({names.begin(), names.end()}, " ");
}

TEST(Fields, AreDeclaredOnceWithValuesAndHelp) {
  std::set<std::string> names;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      EXPECT_TRUE(names.insert(field.name).second) << field.name;
      EXPECT_FALSE(field.values.empty()) << field.name;
      EXPECT_FALSE(field.help.empty()) << field.name;
    }
  }
  EXPECT_EQ(names_of([](const Field&) { return true; }), kContractKeys);
}

TEST(Fields, DefaultsAreThoseOfTheStruct) {
  ProfileText files;
  EXPECT_EQ(to_yaml(files.profile("")), to_yaml(Profile{}));
  EXPECT_EQ(Profile{}.objective.loss_type, LossType::kNll);
  EXPECT_EQ(files.profile("loss_type: dft").objective.loss_type, LossType::kDft);
}

TEST(Fields, WrongValuesSayWhatIsExpected) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"save_interval: -5", "save_interval: got \"-5\", expected off or a time such as 90s, 10m or 2h30m."},
      {"eval_steps: true",
       "eval_steps: got \"true\", expected a number of steps, a share of the run below 1, epoch, or off."},
      {"lora_r: abc", "lora_r: got \"abc\", expected an integer 1 <= x <= 65536."},
      {"lora_r: 0", "lora_r: got \"0\", expected an integer 1 <= x <= 65536."},
      {"lora_r: 65537", "lora_r: got \"65537\", expected an integer 1 <= x <= 65536."},
      {"lora_r: 1.5", "lora_r: got \"1.5\", expected an integer 1 <= x <= 65536."},
      {"lora_r: [1]", "lora_r: got a list, expected an integer 1 <= x <= 65536."},
      {"lora_r: {a: 1}", "lora_r: got a map, expected an integer 1 <= x <= 65536."},
      {"lora_alpha: 0", "lora_alpha: got \"0\", expected a number > 0."},
      {"lora_dropout: 1", "lora_dropout: got \"1\", expected a number 0 <= x < 1."},
      {"learning_rate: -1e-4", "learning_rate: got \"-1e-4\", expected a number > 0."},
      {"loraplus_lr_ratio: 0", "loraplus_lr_ratio: got \"0\", expected null or a number > 0."},
      {"loraplus_lr_ratio: .nan", "loraplus_lr_ratio: got \".nan\", expected null or a number > 0."},
      {"warmup_ratio: 1", "warmup_ratio: got \"1\", expected a number 0 <= x < 1."},
      {"max_drop_fraction: 1.1", "max_drop_fraction: got \"1.1\", expected a number 0 <= x <= 1."},
      {"packing: maybe", "packing: got \"maybe\", expected true or false."},
      {"max_seq_len: 0", "max_seq_len: got \"0\", expected auto or an integer >= 1."},
      {"max_steps: x", "max_steps: got \"x\", expected null or an integer >= 1."},
      {"num_epochs: 0", "num_epochs: got \"0\", expected null or a number > 0."},
      {"loss_type: other", "loss_type: got \"other\", expected nll | dft | kl."},
      {"lr_scheduler_type: cosin",
       "lr_scheduler_type: got \"cosin\", expected linear | cosine | constant | constant_with_warmup | "
       "cosine_with_min_lr. Did you mean \"cosine\"?"},
      {"save_interval: 10x", "save_interval: got \"10x\", expected off or a time such as 90s, 10m or 2h30m."},
      {"eval_steps: 2.5",
       "eval_steps: got \"2.5\", expected a number of steps, a share of the run below 1, epoch, or off."},
      {"model: [a]", "model: got a list, expected text."},
      {"model: \"\"", "model: got \"\", expected text."},
      {"max_time: 2 weeks", "max_time: got \"2 weeks\", expected off or a time such as 90s, 10m or 2h30m."},
      {"datasets: [{type: text}]", "datasets[0]: has no path. Name a file, a folder or a glob."},
      {"datasets: [{path: a, weight: 0}]", "datasets[0].weight: got \"0\", expected a number > 0."},
      {"datasets: [a, {path: b, typ: text}]",
       "datasets[1].typ: unknown key. Did you mean \"type\"? Known here: path, split, subset, type, field_map, weight, "
       "name, max_samples, null_fields."},
      {"datasets: [{path: a, max_samples: 0}]", "datasets[0].max_samples: got \"0\", expected an integer >= 1."},
      {"datasets: [{path: a, type: tex}]",
       "datasets[0].type: got \"tex\", expected auto | messages | prompt_completion | text | pretokenized | sharegpt | "
       "alpaca. Did you mean \"text\"?"},
      {"datasets: [{path: a, field_map: x}]",
       "datasets[0].field_map: got \"x\", expected a map from our column names to those of the file, such as "
       "{instruction: question, output: answer}."},
      {"datasets: [[a]]",
       "datasets[0]: got a list, expected a file, or a map such as {path: train.jsonl, type: auto}."},
      {"lora_target_modules: []",
       "lora_target_modules: an empty list. Expected all-linear, names of linears, or a regex."},
      {"rank_pattern: {q_proj: x}", "rank_pattern.q_proj: got \"x\", expected an integer 1 <= x <= 65536."},
      {"rank_pattern: {q_proj: 65537}", "rank_pattern.q_proj: got \"65537\", expected an integer 1 <= x <= 65536."},
      {"rank_pattern: 8", "rank_pattern: got \"8\", expected a map such as {q_proj: 8}."},
      {"alpha_pattern: {q_proj: -1}", "alpha_pattern.q_proj: got \"-1\", expected a number > 0."},
      {"seed: -1", "seed: got \"-1\", expected an integer 0 <= x <= 9007199254740991."},
      {"early_stopping_patience: 0", "early_stopping_patience: got \"0\", expected null or an integer >= 1."},
      {"early_stopping_threshold: -1", "early_stopping_threshold: got \"-1\", expected a number >= 0."},
      {"gpu_price_per_hour: -1", "gpu_price_per_hour: got \"-1\", expected null or a number >= 0."},
  };
  ProfileText files;
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(files.error("\n" + text + "\n"), "profile.yaml:2: " + expected) << text;
}

TEST(Fields, LongWrongValuesAreCutBetweenCharacters) {
  const std::string wide = "\xE4\xBD\xA0";
  for (const std::size_t before : {198U, 199U, 200U}) {
    std::string value(before, 'x');
    for (int i = 0; i < 9; ++i) value += wide;
    const std::string shown = unexpected(text_value(value), "a number");
    EXPECT_EQ(find_invalid_utf8(shown), std::nullopt) << before;
    EXPECT_EQ(shown, "got \"" + std::string(before, 'x') + "...\", expected a number.");
  }
}

TEST(Fields, MistakesInsideListsNameTheirOwnLine) {
  expect_mistakes({
      {"datasets:\n  - path: a\n    weight: x\n  - path: b\n    type: 5\n",
       "profile.yaml:3: datasets[0].weight: got \"x\", expected a nu", "profile.yaml:5: datasets[1].type: got \"5\""},
      {"datasets:\n  - type: text\n", "profile.yaml:2: datasets[0]: has no path"},
  });
}

TEST(Fields, Cadences) {
  ProfileText files;
  const auto cadence = [&](const std::string& text) { return files.profile("eval_steps: " + text).run.eval_steps; };
  EXPECT_EQ(cadence("100"), (Cadence{Cadence::Kind::kSteps, 100}));
  EXPECT_EQ(cadence("1"), (Cadence{Cadence::Kind::kSteps, 1}));
  EXPECT_EQ(cadence("0.1"), (Cadence{Cadence::Kind::kFraction, 0.1}));
  EXPECT_EQ(cadence("epoch"), (Cadence{Cadence::Kind::kEpoch, 0}));
  for (const char* text : {"off", "false", "0", "no"}) EXPECT_EQ(cadence(text), Cadence{}) << text;
}

TEST(Fields, NullAndAutoAreTheDefaultOrNothing) {
  const LoadedProfile loaded = ProfileText().load(
      "{lora_r: null, max_grad_norm: null, save_total_limit: null, save_interval: null, eval_steps: null, "
      "init_adapter: null, chat_template: ~, max_seq_len: auto, micro_batch_size: auto}");
  const Profile& profile = loaded.profile;
  EXPECT_TRUE(loaded.notes.empty() && loaded.warnings.empty());
  EXPECT_EQ(profile.adapter.lora_r, 16);
  EXPECT_EQ(profile.adapter.init_adapter, "");
  EXPECT_EQ(profile.optimizer.max_grad_norm, 0);
  EXPECT_FALSE(profile.run.save_total_limit || profile.run.save_interval);
  EXPECT_FALSE(profile.data.max_seq_len || profile.schedule.micro_batch_size);
  EXPECT_EQ(profile.run.eval_steps, Profile{}.run.eval_steps);
  EXPECT_EQ(profile.model.chat_template, "tokenizer");
}

TEST(Fields, TargetsAreAWordAListOrARegex) {
  ProfileText files;
  const auto targets = [&](const std::string& text) {
    return files.profile("lora_target_modules: " + text).adapter.lora_target_modules;
  };
  EXPECT_EQ(targets("all-linear").kind, LoraTargets::Kind::kAllLinear);
  EXPECT_EQ(targets("[q_proj, v_proj]").names, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(targets("'.*\\.(q|v)_proj'").regex, ".*\\.(q|v)_proj");
  EXPECT_EQ(targets("'.*\\.[qv]_proj{1,2}'").kind, LoraTargets::Kind::kRegex);
  EXPECT_EQ(targets("q_proj").kind, LoraTargets::Kind::kRegex);
}

TEST(Fields, PatternsKeepTheirOrder) {
  ProfileText files;
  const Profile profile = files.profile("rank_pattern: {z: 4, a: 8, m.0.q: 2}\nalpha_pattern: {z: 0.5}\n");
  using Ranks = std::vector<std::pair<std::string, std::int64_t>>;
  EXPECT_EQ(profile.adapter.rank_pattern, (Ranks{{"z", 4}, {"a", 8}, {"m.0.q", 2}}));
  EXPECT_EQ(profile.adapter.alpha_pattern.at(0).second, 0.5);
}

TEST(Fields, KernelsAreAWordOrAMap) {
  ProfileText files;
  EXPECT_EQ(files.profile("").run.kernels.all, KernelSetting::kAuto);
  EXPECT_EQ(files.profile("kernels: reference").run.kernels.all, KernelSetting::kReference);
  const KernelChoices both = files.profile("kernels: {all: own, rope: reference, adamw: auto}").run.kernels;
  EXPECT_EQ(both.all, KernelSetting::kNative);
  ASSERT_EQ(both.single.size(), 2u);
  EXPECT_EQ(both.single[0], std::pair(std::string("rope"), KernelSetting::kReference));
  EXPECT_EQ(both.single[1], std::pair(std::string("adamw"), KernelSetting::kAuto));
  const KernelChoices again = files.profile(to_yaml(files.profile("kernels: {rope: own}"))).run.kernels;
  EXPECT_EQ(again.single.at(0), std::pair(std::string("rope"), KernelSetting::kNative));
  expect_mistake(files.error("kernels: {rope: fast}"), "profile.yaml:1: kernels.rope");
  expect_mistake(files.error("kernels: {ropes: own}"), "profile.yaml:1: ", "unknown kernel");
}

TEST(Fields, OtherReportersAreRefusedWithTheLineThatDoesIt) {
  expect_mistakes({
      {"report_to: [tensorboard, wandb]\n", "profile.yaml:1: report_to: ", "`wandb sync OUTPUT_DIR/tensorboard`"},
      {"report_to: mlflow\n", "profile.yaml:1: report_to: ", "mlflow.log_metrics("},
      {"report_to: comet_ml\n", "profile.yaml:1: report_to: got \"comet_ml\", expected tensorboard or none."},
  });
  for (const auto& [text, count] : {std::pair("none", 0u), {"[]", 0u}, {"tensorboard", 1u}}) {
    EXPECT_EQ(ProfileText().profile(fmt::format("report_to: {}\n", text)).run.report_to.size(), count) << text;
  }
}

TEST(Fields, TilesOfMlpsAreAutoOffOrANumberOfTokens) {
  ProfileText files;
  const auto tile = [&](const std::string& text) { return files.profile(text).run.mlp_tile_tokens; };
  EXPECT_EQ(tile("seed: 1\n"), std::nullopt);
  EXPECT_EQ(tile("mlp_tile_tokens: auto\n"), std::nullopt);
  EXPECT_EQ(tile("mlp_tile_tokens: off\ngradient_checkpointing: cheap\n"), 0);
  EXPECT_EQ(tile("mlp_tile_tokens: 2048\n"), 2048);
  EXPECT_EQ(tile("mlp_tile_tokens: 2048\ngradient_checkpointing: full\n"), 2048);
  expect_mistake(files.error("mlp_tile_tokens: -1\n"), "profile.yaml:1: mlp_tile_tokens: ", "auto or an integer >= 0");
  for (const std::string mode : {"off", "cheap", "gate_up"}) {
    expect_mistake(files.error("mlp_tile_tokens: 2048\ngradient_checkpointing: " + mode + "\n"),
                   "profile.yaml:1: mlp_tile_tokens: a number needs full recomputation.");
  }
}

TEST(Fields, TheDateOfATemplateIsAutoOrADayThereIs) {
  ProfileText files;
  const auto day = [&](const std::string& text) { return files.profile(text).model.template_date; };
  EXPECT_EQ(day("seed: 1\n"), "");
  EXPECT_EQ(day("template_date: auto\n"), "");
  EXPECT_EQ(day("template_date: 2024-02-29\n"), "2024-02-29");
  EXPECT_EQ(day("template_date: \"2024-02-29\"\n"), "2024-02-29");
  EXPECT_NE(to_yaml(files.profile("template_date: 2024-02-29\n")).find("template_date: \"2024-02-29\""),
            std::string::npos);
  for (const std::string wrong : {"2025-02-29", "today", "20240229", "[2024-02-29]"})
    expect_mistake(files.error("template_date: " + wrong + "\n"), "profile.yaml:1: template_date: got ",
                   "expected auto, or a day such as 2026-12-01.");
}

TEST(Fields, OnlyTheseMayDifferOnResume) {
  EXPECT_EQ(
      names_of([](const Field& field) { return field.on_resume == OnResume::kFree; }),
      "activation_offload attn_implementation base_model_name check_ranks cuda_graphs dataloader_num_workers "
      "dataloader_pin_memory dataloader_prefetch_factor dataset_prepared_path decoded_layers device "
      "early_stopping_patience early_stopping_threshold eval_max_samples eval_micro_batch_size eval_on_start "
      "eval_steps eval_tasks gpu_price_per_hour gradient_checkpointing kernels load_best_model_at_end logging_steps "
      "max_failed_saves max_time mlp_tile_tokens output_dir report_to resume_from_checkpoint run_name save_dtype "
      "save_interval save_steps save_total_limit stage_dir target_gpu tuning");
  EXPECT_EQ(names_of([](const Field& field) { return field.on_resume == OnResume::kMayGrow; }), "max_steps num_epochs");
}

}  // namespace
}  // namespace lora_train
