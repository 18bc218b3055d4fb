#include "lora_train/config/keys/aliases.h"

#include "lora_train/base/text.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

Value text_at(const Value& origin, const std::string& text) {
  Value value = text == "null" ? null_value() : text_value(text);
  value.place = origin.place;
  return value;
}

std::string display(const Value& value) { return value.is_scalar() ? value.text : to_flow_yaml(value); }

Alias same(const std::string& name, const std::string& key) {
  return {name, key, "", [=](const Value& value) {
            Rewrite rewrite;
            rewrite.entries = {{key, value}};
            rewrite.note = "is read as " + key;
            return rewrite;
          }};
}

// An empty text means the default: it undoes what the same name set in an earlier layer (`others`).
Rewrite becomes(const std::string& key, const Value& value, const std::string& text,
                const std::vector<std::string>& others = {}) {
  Rewrite rewrite;
  if (text.empty()) {
    for (const auto& other : others) rewrite.resets.emplace_back(key, other);
    rewrite.note = fmt::format("{} changes nothing: {} decides", display(value), key);
  } else {
    rewrite.entries = {{key, text_at(value, text)}};
    rewrite.note = fmt::format("{} is read as {}: {}", display(value), key, text);
  }
  return rewrite;
}

// true and false become these values of `key`; empty = nothing to set.
Alias flag(const std::string& name, const std::string& key, const std::string& on, const std::string& off) {
  const std::string meaning =
      fmt::format("true = {}, false = {}", on.empty() ? "default" : on, off.empty() ? "default" : off);
  return {name, key, meaning, [=](const Value& value) {
            const auto is_on = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
            if (is_on) return becomes(key, value, *is_on ? on : off, {on, off});
            Rewrite rewrite;
            rewrite.error = fmt::format("got {}, expected true or false. Its key here is {}.", display(value), key);
            return rewrite;
          }};
}

Alias words(const std::string& name, const std::string& key, const Words& table) {
  std::vector<std::string> meanings, known, texts;
  for (const auto& [word, text] : table) {
    texts.push_back(text);
    meanings.push_back(fmt::format("{} = {}", word, text.empty() ? "default" : text));
    known.push_back(word);
  }
  return {name, key, join(meanings), [=](const Value& value) {
            const std::string given = value.is_scalar() ? lower_case(value.text) : "";
            const auto is_on = parse_bool(given);  // YAML has yes and on, too
            for (const auto& [word, text] : table) {
              if (given == word || (is_on && is_on == parse_bool(word))) return becomes(key, value, text, texts);
            }
            Rewrite rewrite;
            rewrite.error =
                fmt::format("got {}, expected {}. Its key here is {}.", display(value), join(known, " | "), key);
            return rewrite;
          }};
}

Alias quantization(const std::string& name, const std::string& to) {
  return {name, "base_precision", "true = " + to, [=](const Value& value) {
            Rewrite rewrite;
            const auto is_on = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
            if (is_on && *is_on) return becomes("base_precision", value, to);
            if (is_on || value.is_null()) {
              rewrite.resets = {{"base_precision", to}};
            } else {
              rewrite.error = fmt::format("got {}, expected true or false.", display(value));
            }
            return rewrite;
          }};
}

// TRL's false trains whole chats, which is not the default here.
Alias assistant_only_loss() {
  Alias alias = flag("assistant_only_loss", "loss_on", "assistant", "");
  alias.meaning = "true = assistant, false is refused";
  alias.rewrite = [known = alias.rewrite](const Value& value) {
    if (!value.is_scalar() || parse_bool(value.text) != false) return known(value);
    Rewrite rewrite;
    rewrite.error =
        "in TRL, false trains every token of a chat. Set loss_on: all for that, or remove it: assistant turns are "
        "trained.";
    return rewrite;
  };
  return alias;
}

Alias tokens_as_they_are(const std::string& name) {
  Alias alias = same(name, "add_tokens");
  alias.meaning = "with normalized: false";
  alias.rewrite = [](const Value& value) {
    Rewrite rewrite;
    rewrite.entries = {{"add_tokens", verbatim_tokens(value)}};
    rewrite.note = "is read as add_tokens with normalized: false, as in that tool";
    return rewrite;
  };
  return alias;
}

/// best: only better evaluations are saved.
Alias save_strategy(const Words& strategies) {
  Alias alias = words("save_strategy", "save_steps", strategies);
  alias.meaning += ", best = off with load_best_model_at_end: true";
  alias.rewrite = [known = alias.rewrite](const Value& value) {
    if (!value.is_scalar() || lower_case(value.text) != "best") return known(value);
    Rewrite rewrite = becomes("save_steps", value, "off");
    rewrite.entries.emplace_back("load_best_model_at_end", text_at(value, "true"));
    rewrite.note =
        "best is read as save_steps: off, load_best_model_at_end: true; adapter/ is then the best step as well";
    return rewrite;
  };
  return alias;
}

Alias bare_batch_size() {
  Alias alias = same("batch_size", "micro_batch_size");
  alias.meaning = "with a warning";
  alias.rewrite = [](const Value& value) {
    Rewrite rewrite;
    rewrite.entries = {{"micro_batch_size", value}};
    rewrite.warning =
        "is read as micro_batch_size (rows per rank and forward pass); other tools mean the batch of a whole step. Use "
        "micro_batch_size or global_batch_size.";
    return rewrite;
  };
  return alias;
}

/// Reads cuda:0 and gpu as cuda; the error for another vendor's device names it.
Rewrite other_device(const Value& value) {
  Rewrite rewrite;
  const std::string given = value.is_scalar() ? lower_case(value.text) : "";
  if (given == "gpu" || given == "cuda:0") return becomes("device", value, "cuda");
  for (const char* const other : {"mps", "xpu", "npu", "tpu", "hpu", "rocm", "hip"}) {
    if (given == other)
      rewrite.error =
          "\"" + given + "\" is not supported: lora-train runs on NVIDIA GPUs and on CPUs. Use auto, cuda or cpu.";
  }
  return rewrite;
}

const Words kPrecisions = {{"bf16", "bf16"}, {"bfloat16", "bf16"}, {"auto", "bf16"},
                           {"fp32", "fp32"}, {"float32", "fp32"},  {"no", "fp32"}};

struct OtherNames {
  const char* key;
  std::vector<const char*> names;
};

const std::vector<OtherNames>& same_value_names() {
  static const std::vector<OtherNames> table = {
      {"model", {"model_name_or_path", "base_model", "model_name", "model_path"}},
      {"chat_template", {"chat_template_path"}},
      {"add_tokens", {"add_new_tokens"}},
      {"token_init", {"init_special_tokens"}},
      {"lora_r", {"r", "lora_rank", "rank"}},
      {"lora_target_modules", {"target_modules", "lora_target"}},
      {"use_rslora", {"peft_use_rslora"}},
      {"init_adapter", {"lora_model_dir", "adapter_name_or_path"}},
      {"datasets", {"train_dataset", "train_data", "data_path", "train_file", "dataset_name", "dataset", "data"}},
      {"eval_datasets",
       {"eval_data", "eval_data_path", "eval_file", "validation_file", "test_datasets", "eval_dataset"}},
      {"val_set_size", {"val_size", "validation_split_ratio"}},
      {"max_seq_len", {"max_length", "sequence_len", "cutoff_len", "max_seq_length", "model_max_length"}},
      {"packing", {"sample_packing"}},
      {"dataset_prepared_path", {"tokenized_path"}},
      {"micro_batch_size",
       {"per_device_train_batch_size", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"}},
      {"eval_micro_batch_size", {"per_device_eval_batch_size", "eval_batch_size", "batch_size_val"}},
      {"gradient_accumulation_steps", {"grad_accumulation", "grad_accumulation_steps", "gradient_accumulation"}},
      {"num_epochs", {"num_train_epochs", "epochs"}},
      {"max_steps", {"iters"}},
      {"learning_rate", {"lr"}},
      {"lr_scheduler_type", {"lr_scheduler"}},
      {"warmup_steps", {"warmup"}},
      {"min_lr_ratio", {"cosine_min_lr_ratio", "final_lr_fraction"}},
      {"max_grad_norm", {"grad_clip", "clip_grad_norm", "gradient_clipping"}},
      {"optim", {"optimizer"}},
      {"adam_beta1", {"adamw_beta1", "beta1"}},
      {"adam_beta2", {"adamw_beta2", "beta2"}},
      {"adam_epsilon", {"adamw_epsilon", "adam_eps"}},
      {"seed", {"train_seed"}},
      {"double_quant",
       {"use_bnb_nested_quant", "bnb_4bit_use_double_quant", "qlora_bnb_double_quant", "double_quantization"}},
      {"gradient_checkpointing",
       {"use_gradient_checkpointing", "recompute", "grad_checkpoint", "enable_activation_checkpointing"}},
      {"cuda_graphs", {"use_cuda_graphs"}},
      {"eval_steps", {"steps_per_eval", "run_val_every_n_steps"}},
      {"logging_steps", {"steps_per_report"}},
      {"save_steps", {"save_every"}},
      {"save_total_limit", {"ckpt_keep_n"}},
      {"output_dir", {"adapter_path"}},
  };
  return table;
}

std::vector<Alias> mapped_aliases() {
  const Words strategies = {{"steps", ""}, {"epoch", "epoch"}, {"no", "off"}, {"off", "off"}, {"false", "off"}};
  return {
      quantization("load_in_4bit", "nf4"),
      quantization("load_in_8bit", "int8"),
      quantization("qlora_bnb", "nf4"),
      quantization("qlora_fp8", "fp8"),
      words("quantization_bit", "base_precision", {{"4", "nf4"}, {"8", "int8"}}),
      words("bf16", "precision", {{"true", "bf16"}, {"auto", "bf16"}, {"false", "fp32"}}),
      words("mixed_precision", "precision", kPrecisions),
      words("torch_dtype", "precision", kPrecisions),
      words("dtype", "precision", kPrecisions),
      words("recipe", "precision", {{"bf16", "bf16"}}),
      flag("use_peft", "adapter", "lora", "none"),
      flag("lora", "adapter", "lora", "none"),
      words("finetuning_type", "adapter", {{"lora", "lora"}, {"full", "none"}}),
      words("fine_tune_type", "adapter", {{"lora", "lora"}, {"full", "none"}}),
      flag("lora_target_linear", "lora_target_modules", "all-linear", ""),
      assistant_only_loss(),
      flag("completion_only_loss", "loss_on", "completion", "all"),
      flag("train_on_inputs", "loss_on", "all", ""),
      flag("train_on_prompt", "loss_on", "all", ""),
      flag("mask_prompt", "loss_on", "", "all"),
      flag("mask_history", "loss_on", "last", ""),
      words("truncation_mode", "overlength", {{"keep_start", "truncate"}}),
      words("excess_length_strategy", "overlength", {{"drop", "drop"}, {"truncate", "truncate"}, {"raise", "error"}}),
      words("truncation_strategy", "overlength",
            {{"delete", "drop"}, {"right", "truncate"}, {"truncate", "truncate"}, {"raise", "error"}}),
      tokens_as_they_are("tokens"),
      tokens_as_they_are("add_special_tokens"),
      bare_batch_size(),
      flag("disable_gradient_checkpointing", "gradient_checkpointing", "off", ""),
      flag("torch_compile", "cuda_graphs", "auto", "off"),
      flag("compile", "cuda_graphs", "auto", "off"),
      flag("flash_attention", "attn_implementation", "auto", ""),
      flag("use_flash_attention_2", "attn_implementation", "auto", ""),
      flag("use_flash_attn", "attn_implementation", "auto", ""),
      words("flash_attn", "attn_implementation",
            {{"auto", "auto"}, {"fa2", "fa2"}, {"sdpa", "auto"}, {"disabled", "reference"}}),
      words("eval_strategy", "eval_steps", strategies),
      words("evaluation_strategy", "eval_steps", strategies),
      save_strategy(strategies),
      flag("auto_resume_from_checkpoints", "resume_from_checkpoint", "auto", "none"),
      flag("use_tensorboard", "report_to", "tensorboard", "none"),
  };
}

// Another word for a value of the same key.
Rewrite spelled(const std::string& key, const Value& value, const std::string& text) {
  Rewrite rewrite;
  rewrite.entries = {{key, text_at(value, text)}};
  rewrite.note = fmt::format("{} is read as {}", display(value), text);
  return rewrite;
}

// A value rule that knows some words and leaves all others to the field.
Alias spellings(const std::string& key, const Words& table) {
  return {key, key, "", [=](const Value& value) {
            const std::string given = value.is_scalar() ? lower_case(value.text) : "";
            for (const auto& [word, text] : table) {
              if (given == word) return spelled(key, value, text);
            }
            return Rewrite{};
          }};
}

Rewrite other_metric(const Value& value) {
  const std::string ours = value.is_scalar() ? metric_from(value.text) : "";
  return ours.empty() || ours == value.text ? Rewrite{} : spelled("metric_for_best_model", value, ours);
}

Rewrite warmup_share(const Value& value) {
  Rewrite rewrite;
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if (number && *number > 0 && *number < 1) {
    rewrite.entries = {{"warmup_ratio", value}};
    rewrite.note = value.text + " is a share of all steps; it is read as warmup_ratio";
  }
  return rewrite;
}

Rewrite qlora(const Value& value) {
  Rewrite rewrite;
  if (value.is_scalar() && lower_case(value.text) == "qlora") {
    rewrite.entries = {{"adapter", text_at(value, "lora")}};
    rewrite.implied = {{"base_precision", text_at(value, "nf4")}};
    rewrite.note = "qlora is read as adapter: lora with base_precision: nf4";
  }
  return rewrite;
}

const char* const kAdapter = "this kind of adapter is not supported. Remove it, or set use_rslora: true.";
const char* const kModules =
    "whole modules cannot be trained alongside an adapter. Remove it, or set adapter: none to train all weights.";
const char* const kRows =
    "rows of existing tokens are not trained alongside an adapter. Name new tokens in add_tokens, or set adapter: none "
    "to train all weights.";
const char* const kSharding =
    "the model is never sharded. Remove it; to save memory, set gradient_checkpointing: full.";
const char* const kRanks = "the number of ranks comes from torchrun, mpirun, srun or --nproc, never from a profile.";
const char* const kMerge = "merging is a separate command: lora-train merge --model M --adapter A --output-dir O.";
const char* const kQuant = "base_precision names the format: nf4, int8 or fp8.";

std::vector<ForeignKey> with_adapter_flags(std::vector<ForeignKey> table) {
  for (const auto& [name, kind] : adapter_flags(false)) table.push_back({name, kAdapter, "", true});
  return table;
}

OtherTools& introduced() {
  static OtherTools tools;
  return tools;
}

}  // namespace

const std::vector<Alias>& aliases() {
  static const std::vector<Alias> table = [] {
    std::vector<Alias> all;
    for (const auto& [key, names] : same_value_names()) {
      for (const char* name : names) all.push_back(same(name, key));
    }
    for (auto& alias : mapped_aliases()) all.push_back(std::move(alias));
    for (const auto& [name, kind] : adapter_flags(true)) all.push_back(flag(name, "adapter", kind, ""));
    return all;
  }();
  return table;
}

const std::vector<Alias>& value_rules() {
  static const std::vector<Alias> table = {
      {"adapter", "adapter", "", qlora},
      {"warmup_steps", "warmup_steps", "", warmup_share},
      {"device", "device", "", other_device},
      spellings("max_steps", {{"-1", "null"}}),
      spellings("optim", {{"paged_adamw_8bit", "adamw_8bit"},
                          {"adamw_bnb_8bit", "adamw_8bit"},
                          {"paged_adamw_32bit", "adamw_torch"},
                          {"adamw", "adamw_torch"}}),
      spellings(
          "attn_implementation",
          {{"sdpa", "auto"}, {"flash_attention_2", "auto"}, {"flash_attention_3", "auto"}, {"eager", "reference"}}),
      spellings("gradient_checkpointing", {{"unsloth", "full"}}),
      spellings("resume_from_checkpoint",
                {{"false", "none"}, {"off", "none"}, {"no", "none"}, {"true", "auto"}, {"on", "auto"}}),
      {"metric_for_best_model", "metric_for_best_model", "", other_metric},
  };
  return table;
}

Value verbatim_tokens(const Value& names) {
  Value tokens = list_value({});
  tokens.place = names.place;
  for (const Value& name : names.is_list() ? names.items : std::vector<Value>{names}) {
    Value token = name;
    if (name.is_scalar()) {
      token.kind = Value::Kind::kMap;
      token.text.clear();
      token.members = {{"token", name}};
    }
    token.members.push_back({"normalized", bool_value(false)});
    tokens.items.push_back(std::move(token));
  }
  return tokens;
}

std::vector<std::pair<std::string, std::string>> adapter_flags(bool is_built) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (const auto& kind : flagged_kinds()) {
    if (from_string<AdapterKind>(kind).has_value() != is_built) continue;
    for (const char* prefix : {"use_", "peft_use_"}) flags.emplace_back(prefix + kind, kind);
  }
  return flags;
}

const Alias* find_alias(const std::string& name) {
  for (const auto& alias : aliases()) {
    if (alias.name == name) return &alias;
  }
  return nullptr;
}

const Alias* find_value_rule(const std::string& key) {
  for (const auto& rule : value_rules()) {
    if (rule.key == key) return &rule;
  }
  return nullptr;
}

const std::vector<std::vector<std::string>>& alternative_groups() {
  static const std::vector<std::vector<std::string>> groups = {
      {"global_batch_size", "gradient_accumulation_steps"},
      {"warmup_ratio", "warmup_steps"},
      {"eval_datasets", "val_set_size"},
  };
  return groups;
}

const std::vector<ForeignKey>& refused_keys() {
  static const std::vector<ForeignKey> table = with_adapter_flags({
      {"fp16",
       "is not supported: fp16 needs loss scaling and overflows in large models, and all supported GPUs (Ampere and "
       "later) have bf16. Use precision: bf16.",
       "", true},
      {"scale", "mlx's scale is alpha / r. Set lora_alpha to scale times lora_r.", ""},
      {"lora_parameters", "use lora_r, lora_alpha (mlx's scale times the rank), lora_dropout and lora_target_modules.",
       ""},
      {"pissa_init", kAdapter, "", true},
      {"init_lora_weights",
       "the adapter starts with PEFT's default (A Kaiming-uniform, B zero). To start from another, save it as a PEFT "
       "folder and use init_adapter.",
       "true"},
      {"modules_to_save", kModules, ""},
      {"lora_modules_to_save", kModules, ""},
      {"additional_target", kModules, ""},
      {"trainable_token_indices", kRows, ""},
      {"peft_trainable_token_indices", kRows, ""},
      {"train_token_rows", kRows, "", true},
      {"zero_stage", kSharding, ""},
      {"zero_level", kSharding, ""},
      {"gpus", kRanks, ""},
      {"nproc", kRanks, ""},
      {"local_rank", kRanks, "-1"},
      {"nproc_per_node", kRanks, ""},
      {"merge_lora", kMerge, "", true},
      {"merge_adapter", kMerge, "", true},
      {"dataset_text_field", "name the column in the dataset: datasets: [{path: ..., field_map: {text: COLUMN}}].",
       "text"},
      {"dataset_dir",
       "only lora-train convert reads names from its dataset_info.json. In a profile, name the files: datasets: "
       "[{path: ...}].",
       ""},
      {"dataset_train_split", "name the split in the dataset: datasets: [{path: FOLDER, split: NAME}].", ""},
      {"dataset_test_split", "name the split in the dataset: eval_datasets: [{path: FOLDER, split: NAME}].", ""},
      {"dataset_config", "name it in the dataset: datasets: [{path: org/name, subset: NAME}].", ""},
      {"roles_to_train", "use loss_on: assistant | last | completion | all.", ""},
      {"train_on_eos", "the end-of-turn token of a trained turn is always trained. Remove it.", "", true},
      {"loss_scale", "use loss_on: assistant | last | completion | all.", ""},
      {"lr_scheduler_kwargs", "use min_lr_ratio with lr_scheduler_type: cosine_with_min_lr.", ""},
      {"max_samples",
       "it cuts the training data in some programs and the evaluation data in others. Use max_samples in an entry of "
       "datasets, or eval_max_samples.",
       ""},
      {"packing_strategy", "documents stay whole in a packed row. Remove it, or cut the texts beforehand.", "bfd"},
      {"bias", "biases are not trained alongside an adapter. Remove it, or set adapter: none to train all weights.",
       "none"},
      {"task_type", "only causal language models are trained. Remove it.", "causal_lm"},
      {"inference_mode", "an adapter is always trained. Remove it; to answer with one, use generate or chat.", "",
       true},
      {"val_batches", "use eval_max_samples (documents).", ""},
      {"lora_dtype", "LoRA weights are always fp32 in training. save_dtype: bf16 makes a smaller adapter/.", ""},
      {"pure_bf16", "trained weights are always fp32. Use precision: bf16.", "", true},
      {"quant_type", kQuant, "nf4"},
      {"bnb_4bit_quant_type", kQuant, "nf4"},
      {"quantization_type", kQuant, "nf4"},
  });
  return table;
}

const std::vector<ForeignKey>& idle_keys() {
  static const std::string isolated = "documents in a packed row are always isolated";
  static const std::vector<ForeignKey> table = {
      {"neat_packing", isolated, "", true},
      {"padding_free", "padding is never computed", "", true},
      {"torch_compile_mode", "the kernels are compiled ahead of time", ""},
      {"torch_compile_backend", "the kernels are compiled ahead of time", ""},
      {"gradient_checkpointing_kwargs", "recomputation has no variants here", ""},
      {"trust_remote_code", "code from a model folder is never run", "", true},
      {"remove_unused_columns", "unused columns never reach the trainer", "", true},
      {"use_cache", "training keeps no KV cache", "", true},
      {"ddp_find_unused_parameters", "gradients of all ranks are reduced in one buffer", "", true},
      {"logging_strategy", "logging_steps decides", ""},
      {"overwrite_output_dir", "only --overwrite replaces an existing run", "", true},
      {"do_train", "the command decides what is done", "", true},
      {"do_eval", "a run evaluates if it has evaluation data", "", true},
  };
  return table;
}

const std::vector<std::pair<std::string, std::string>>& foreign_metrics() {
  static const std::vector<std::pair<std::string, std::string>> table = {
      {"loss", "eval_loss"},
      {"eval_loss", "eval_loss"},
      {"perplexity", "perplexity"},
      {"eval_perplexity", "perplexity"},
      {"accuracy", "token_accuracy"},
      {"eval_accuracy", "token_accuracy"},
      {"mean_token_accuracy", "token_accuracy"},
      {"eval_mean_token_accuracy", "token_accuracy"}};
  return table;
}

std::string metric_from(const std::string& theirs) {
  for (const auto& [from, ours] : foreign_metrics()) {
    if (lower_case(theirs) == from) return ours;
  }
  return {};
}

void introduce_other_tools(const OtherTools& tools) { introduced() = tools; }

const OtherTools& other_tools() { return introduced(); }

}  // namespace lora_train
