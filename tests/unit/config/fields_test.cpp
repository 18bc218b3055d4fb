// What each kind of value takes and refuses.
#include <gtest/gtest.h>

#include <set>

#include "config/keys/field_kinds.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/load.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

// The keys that users were promised.
// clang-format off
const std::vector<const char*> kContractKeys = {
    "model", "teacher", "teacher_system", "student_system", "drop_duplicates", "greater_is_better", "early_stopping_threshold", "device",
    "adapter", "base_precision", "precision", "tf32", "lora_r",
    "lora_alpha", "lora_dropout", "lora_target_modules", "init_adapter", "datasets",
    "eval_datasets", "val_set_size", "chat_template", "loss_on", "max_seq_len",
    "overlength", "packing", "shuffle", "micro_batch_size", "global_batch_size",
    "gradient_accumulation_steps", "loss_type", "kd_alpha", "kd_temperature", "optim", "learning_rate", "lr_scheduler_type",
    "warmup_ratio", "warmup_steps", "weight_decay", "max_grad_norm", "num_epochs",
    "max_steps", "gradient_checkpointing", "activation_offload", "mlp_tile_tokens", "cuda_graphs",
    "attn_implementation", "dataloader_num_workers", "eval_steps", "eval_on_start", "eval_max_samples",
    "logging_steps", "save_steps", "save_interval", "save_total_limit", "resume_from_checkpoint",
    "output_dir", "report_to", "seed", "deterministic", "tuning",
    "kernels", "use_rslora", "rank_pattern", "alpha_pattern", "double_quant",
    "decoded_layers", "min_lr_ratio", "adam_beta1", "adam_beta2", "adam_epsilon",
    "lr_scaling", "lr_base_batch", "eval_micro_batch_size", "load_best_model_at_end", "metric_for_best_model",
    "early_stopping_patience", "max_failed_saves", "max_time", "on_bad_row", "max_drop_fraction",
    "stage_dir", "dataset_prepared_path", "dataloader_pin_memory", "dataloader_prefetch_factor", "add_tokens",
    "token_init", "gpu_price_per_hour", "target_gpu", "save_dtype", "base_model_name",
    "run_name", "loraplus_lr_ratio", "check_ranks", "batch_unit", "eval_tasks", "confidence_tokens"};
// clang-format on

TEST(Fields, AreDeclaredOnceWithValuesAndHelp) {
  std::set<std::string> names;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      EXPECT_TRUE(names.insert(field.name).second) << field.name;
      EXPECT_FALSE(field.values.empty()) << field.name;
      EXPECT_FALSE(field.help.empty()) << field.name;
    }
  }
  for (const char* key : kContractKeys) {
    EXPECT_EQ(names.erase(key), 1u) << key;
  }
  EXPECT_TRUE(names.empty()) << *names.begin();
}

TEST(Fields, ReadTheBlockOfTheContract) {
  ProfileText files;
  const LoadedProfile loaded = files.load(R"(
model: /models/Qwen2.5-7B-Instruct
device: auto
adapter: lora
base_precision: bf16
precision: bf16
lora_target_modules: all-linear
init_adapter: null
datasets: [{path: train.jsonl, type: auto}]
eval_datasets: [{path: val.jsonl}]
max_seq_len: auto
micro_batch_size: auto
global_batch_size: 16
learning_rate: 2.0e-4
max_grad_norm: 1.0
num_epochs: 3
eval_steps: 200
eval_max_samples: 500
save_interval: 10m
save_total_limit: 2
resume_from_checkpoint: auto
report_to: [tensorboard]
seed: 42
)");
  const Profile& profile = loaded.profile;
  EXPECT_TRUE(loaded.notes.empty());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(profile.model.path, "/models/Qwen2.5-7B-Instruct");
  EXPECT_FALSE(profile.data.max_seq_len.has_value());
  EXPECT_FALSE(profile.schedule.micro_batch_size.has_value());
  EXPECT_EQ(profile.schedule.global_batch_size, 16);
  EXPECT_EQ(profile.data.eval_max_samples, 500);
  EXPECT_EQ(profile.run.save_interval, 600);
  EXPECT_EQ(profile.run.report_to, std::vector<Reporter>{Reporter::kTensorboard});
  EXPECT_EQ(profile.adapter.init_adapter, "");
}

TEST(Fields, DefaultsAreThoseOfTheStruct) {
  ProfileText files;
  EXPECT_EQ(to_yaml(files.load("").profile), to_yaml(Profile{}));
}

TEST(Fields, TheLossIsCrossEntropyUnlessAnotherIsNamed) {
  ProfileText files;
  const Profile plain = files.load("").profile, dft = files.load("loss_type: dft").profile;
  EXPECT_EQ(plain.objective.loss_type, LossType::kNll);
  EXPECT_EQ(dft.objective.loss_type, LossType::kDft);
  const std::vector<ProfileDifference> differences = diff_profiles(plain, dft);
  ASSERT_EQ(differences.size(), 1U);
  EXPECT_EQ(differences[0].key, "loss_type");
  EXPECT_FALSE(differences[0].allowed_on_resume) << "on resume";
}

TEST(Fields, LearningRateInAnySpelling) {
  ProfileText files;
  for (const char* text : {"2e-4", "2.0e-4", "0.0002", "\"2e-4\"", "'2E-4'"}) {
    EXPECT_EQ(files.load(std::string("learning_rate: ") + text).profile.optimizer.learning_rate, 2e-4) << text;
    EXPECT_EQ(files.load("", {std::string("learning_rate=") + text}).profile.optimizer.learning_rate, 2e-4) << text;
  }
}

TEST(Fields, WrongValuesSayWhatIsExpected) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lora_r: abc", "lora_r: got \"abc\", expected an integer 1 <= x <= 65536."},
      {"lora_r: 0", "lora_r: got \"0\", expected an integer 1 <= x <= 65536."},
      {"lora_r: 65537", "lora_r: got \"65537\", expected an integer 1 <= x <= 65536."},
      {"lora_r: 1.5", "lora_r: got \"1.5\", expected an integer 1 <= x <= 65536."},
      {"lora_r: [1]", "lora_r: got a list, expected an integer 1 <= x <= 65536."},
      {"lora_r: {a: 1}", "lora_r: got a map, expected an integer 1 <= x <= 65536."},
      {"lora_alpha: 0", "lora_alpha: got \"0\", expected a number > 0."},
      {"lora_dropout: 1", "lora_dropout: got \"1\", expected a number 0 <= x < 1."},
      {"learning_rate: -1e-4", "learning_rate: got \"-1e-4\", expected a number > 0."},
      {"learning_rate: nan", "learning_rate: got \"nan\", expected a number > 0."},
      {"loraplus_lr_ratio: 0", "loraplus_lr_ratio: got \"0\", expected null or a number > 0."},
      {"loraplus_lr_ratio: -4", "loraplus_lr_ratio: got \"-4\", expected null or a number > 0."},
      {"loraplus_lr_ratio: .nan", "loraplus_lr_ratio: got \".nan\", expected null or a number > 0."},
      {"warmup_ratio: 1", "warmup_ratio: got \"1\", expected a number 0 <= x < 1."},
      {"max_drop_fraction: 1.1", "max_drop_fraction: got \"1.1\", expected a number 0 <= x <= 1."},
      {"packing: maybe", "packing: got \"maybe\", expected true or false."},
      {"max_seq_len: 0", "max_seq_len: got \"0\", expected auto or an integer >= 1."},
      {"max_steps: x", "max_steps: got \"x\", expected null or an integer >= 1."},
      {"num_epochs: 0", "num_epochs: got \"0\", expected null or a number > 0."},
      {"loss_type: sigmoid", "loss_type: got \"sigmoid\", expected nll | dft | kl."},
      {"lr_scheduler_type: cosin",
       "lr_scheduler_type: got \"cosin\", expected linear | cosine | constant | constant_with_warmup | "
       "cosine_with_min_lr. Did you mean \"cosine\"?"},
      {"save_interval: 10x", "save_interval: got \"10x\", expected off or a time such as 90s, 10m or 2h30m."},
      {"save_interval: -5", "save_interval: got \"-5\", expected off or a time such as 90s, 10m or 2h30m."},
      {"eval_steps: 2.5",
       "eval_steps: got \"2.5\", expected a number of steps, a share of the run below 1, epoch, or off."},
      {"eval_steps: true",
       "eval_steps: got \"true\", expected a number of steps, a share of the run below 1, epoch, or off."},
      {"model: [a]", "model: got a list, expected text."},
      {"model: \"\"", "model: got \"\", expected text."},
      {"datasets: [{type: text}]", "datasets[0]: has no path. Name a file, a folder or a glob."},
      {"datasets: [{path: a, weight: 0}]", "datasets[0].weight: got \"0\", expected a number > 0."},
      {"datasets: [a, {path: b, typ: text}]",
       "datasets[1].typ: unknown key. Did you mean \"type\"? Known here: path, split, subset, type, field_map, weight, "
       "name, max_samples."},
      {"datasets: [{path: a, max_samples: 0}]", "datasets[0].max_samples: got \"0\", expected an integer >= 1."},
      {"datasets: [{path: a, type: tex}]",
       "datasets[0].type: got \"tex\", expected auto | messages | prompt_completion | text | pretokenized | sharegpt | "
       "alpaca. Did you mean \"text\"?"},
      {"datasets: [{path: a, field_map: x}]",
       "datasets[0].field_map: got \"x\", expected a map from our column names to those of the file, such as "
       "{prompt: "
       "question, completion: answer}."},
      {"datasets: [[a]]",
       "datasets[0]: got a list, expected a file, or a map such as {path: train.jsonl, type: auto}."},
      {"lora_target_modules: []",
       "lora_target_modules: an empty list. Expected all-linear, names of linears, or a regex."},
      {"lora_target_modules: [[a]]", "lora_target_modules: got a list, expected text."},
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
  ProfileText files;
  EXPECT_EQ(files.error("datasets:\n  - path: a\n    weight: x\n  - path: b\n    type: 5\n").substr(0, 58),
            "profile.yaml:3: datasets[0].weight: got \"x\", expected a nu");
  EXPECT_NE(files.error("datasets:\n  - path: a\n  - path: b\n    type: 5\n").find("profile.yaml:4: datasets[1].type"),
            std::string::npos);
}

TEST(Fields, Cadences) {
  ProfileText files;
  const auto cadence = [&](const std::string& text) {
    return files.load("eval_steps: " + text).profile.run.eval_steps;
  };
  EXPECT_EQ(cadence("100"), (Cadence{Cadence::Kind::kSteps, 100}));
  EXPECT_EQ(cadence("1"), (Cadence{Cadence::Kind::kSteps, 1}));
  EXPECT_EQ(cadence("0.1"), (Cadence{Cadence::Kind::kFraction, 0.1}));
  EXPECT_EQ(cadence("epoch"), (Cadence{Cadence::Kind::kEpoch, 0}));
  for (const char* text : {"off", "false", "0", "no"}) EXPECT_EQ(cadence(text), Cadence{}) << text;
}

TEST(Fields, NullIsTheDefaultOrNothing) {
  ProfileText files;
  const Profile profile = files
                              .load(
                                  "lora_r: null\nmax_grad_norm: null\nsave_total_limit: null\nsave_interval: null\n"
                                  "eval_steps: null\nchat_template: ~\n")
                              .profile;
  EXPECT_EQ(profile.adapter.lora_r, 16);
  EXPECT_EQ(profile.optimizer.max_grad_norm, 0);
  EXPECT_FALSE(profile.run.save_total_limit.has_value());
  EXPECT_FALSE(profile.run.save_interval.has_value());
  EXPECT_EQ(profile.run.eval_steps, Profile{}.run.eval_steps);
  EXPECT_EQ(profile.model.chat_template, "tokenizer");
}

TEST(Fields, TargetsAreAWordAListOrARegex) {
  ProfileText files;
  const auto targets = [&](const std::string& text) {
    return files.load("lora_target_modules: " + text).profile.adapter.lora_target_modules;
  };
  EXPECT_EQ(targets("all-linear").kind, LoraTargets::Kind::kAllLinear);
  EXPECT_EQ(targets("[q_proj, v_proj]").names, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(targets("'.*\\.(q|v)_proj'").regex, ".*\\.(q|v)_proj");
  EXPECT_EQ(targets("'.*\\.[qv]_proj{1,2}'").kind, LoraTargets::Kind::kRegex);
  EXPECT_EQ(targets("q_proj").kind, LoraTargets::Kind::kRegex);
}

TEST(Fields, PatternsKeepTheirOrder) {
  ProfileText files;
  const Profile profile = files.load("rank_pattern: {z: 4, a: 8, m.0.q: 2}\nalpha_pattern: {z: 0.5}\n").profile;
  using Ranks = std::vector<std::pair<std::string, std::int64_t>>;
  EXPECT_EQ(profile.adapter.rank_pattern, (Ranks{{"z", 4}, {"a", 8}, {"m.0.q", 2}}));
  EXPECT_EQ(profile.adapter.alpha_pattern.at(0).second, 0.5);
}

TEST(Fields, KernelsAreAWordOrAMap) {
  ProfileText files;
  EXPECT_EQ(files.load("").profile.run.kernels.all, KernelSetting::kAuto);
  EXPECT_EQ(files.load("kernels: reference").profile.run.kernels.all, KernelSetting::kReference);
  const KernelChoices both = files.load("kernels: {all: own, rope: reference, adamw: auto}").profile.run.kernels;
  EXPECT_EQ(both.all, KernelSetting::kNative);
  ASSERT_EQ(both.single.size(), 2u);
  EXPECT_EQ(both.single[0], std::pair(std::string("rope"), KernelSetting::kReference));
  EXPECT_EQ(both.single[1], std::pair(std::string("adamw"), KernelSetting::kAuto));
  const KernelChoices again = files.load(to_yaml(files.load("kernels: {rope: own}").profile)).profile.run.kernels;
  EXPECT_EQ(again.single.at(0), std::pair(std::string("rope"), KernelSetting::kNative));
  EXPECT_NE(files.error("kernels: {rope: fast}").find("kernels.rope"), std::string::npos);
  EXPECT_NE(files.error("kernels: {ropes: own}").find("unknown kernel"), std::string::npos);
}

TEST(Fields, OtherReportersAreRefusedWithTheLineThatDoesIt) {
  ProfileText files;
  EXPECT_NE(files.error("report_to: [tensorboard, wandb]\n").find("`wandb sync OUTPUT_DIR/tensorboard`"),
            std::string::npos);
  EXPECT_NE(files.error("report_to: mlflow\n").find("mlflow.log_metrics("), std::string::npos);
  EXPECT_NE(files.error("report_to: comet_ml\n").find("got \"comet_ml\", expected tensorboard or none."),
            std::string::npos);
  EXPECT_TRUE(files.load("report_to: none\n").profile.run.report_to.empty());
  EXPECT_TRUE(files.load("report_to: []\n").profile.run.report_to.empty());
  EXPECT_EQ(files.load("report_to: tensorboard\n").profile.run.report_to.size(), 1u);
}

TEST(Fields, TilesOfMlpsAreAutoOffOrANumberOfTokens) {
  ProfileText files;
  const auto tile = [&](const std::string& text) { return files.load(text).profile.run.mlp_tile_tokens; };
  EXPECT_EQ(tile("seed: 1\n"), std::nullopt);
  EXPECT_EQ(tile("mlp_tile_tokens: auto\n"), std::nullopt);
  EXPECT_EQ(tile("mlp_tile_tokens: off\ngradient_checkpointing: cheap\n"), 0);
  EXPECT_EQ(tile("mlp_tile_tokens: 2048\n"), 2048);
  EXPECT_EQ(tile("mlp_tile_tokens: 2048\ngradient_checkpointing: full\n"), 2048);
  EXPECT_NE(files.error("mlp_tile_tokens: -1\n").find("auto or an integer >= 0"), std::string::npos);
  for (const std::string mode : {"off", "cheap", "gate_up"}) {
    const std::string text = files.error("mlp_tile_tokens: 2048\ngradient_checkpointing: " + mode + "\n");
    EXPECT_NE(text.find(":1: mlp_tile_tokens: a number needs full recomputation."), std::string::npos) << text;
  }
}

TEST(Fields, OnlyTheseMayDifferOnResume) {
  std::set<std::string> free, growing;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      if (field.on_resume == OnResume::kFree) free.insert(field.name);
      if (field.on_resume == OnResume::kMayGrow) growing.insert(field.name);
    }
  }
  EXPECT_EQ(free, (std::set<std::string>{"activation_offload",
                                         "attn_implementation",
                                         "base_model_name",
                                         "check_ranks",
                                         "cuda_graphs",
                                         "dataloader_num_workers",
                                         "dataloader_pin_memory",
                                         "dataloader_prefetch_factor",
                                         "dataset_prepared_path",
                                         "decoded_layers",
                                         "device",
                                         "early_stopping_patience",
                                         "early_stopping_threshold",
                                         "eval_max_samples",
                                         "eval_micro_batch_size",
                                         "eval_on_start",
                                         "eval_steps",
                                         "eval_tasks",
                                         "gpu_price_per_hour",
                                         "gradient_checkpointing",
                                         "kernels",
                                         "load_best_model_at_end",
                                         "logging_steps",
                                         "max_failed_saves",
                                         "max_time",
                                         "mlp_tile_tokens",
                                         "output_dir",
                                         "report_to",
                                         "resume_from_checkpoint",
                                         "run_name",
                                         "save_dtype",
                                         "save_interval",
                                         "save_steps",
                                         "save_total_limit",
                                         "stage_dir",
                                         "target_gpu",
                                         "tuning"}));
  EXPECT_EQ(growing, (std::set<std::string>{"max_steps", "num_epochs"}));
}

}  // namespace
}  // namespace lora_train
