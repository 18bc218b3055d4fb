#include "training_keys.h"

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

using WordTable = std::vector<std::pair<const char*, const char*>>;  ///< theirs in lower case, ours

/// Our word for theirs, in any case; empty = none.
std::string translated(const WordTable& words, const std::string& theirs) {
  for (const auto& [from, to] : words) {
    if (lower_case(theirs) == from) return to;
  }
  return {};
}

const WordTable kOptimizers = {
    {"adamw_torch", "adamw_torch"}, {"adamw_torch_fused", "adamw_torch_fused"}, {"adamw_hf", "adamw_torch"},
    {"adamw", "adamw_torch"},       {"paged_adamw_32bit", "adamw_torch"},       {"paged_adamw", "adamw_torch"},
    {"adamw_8bit", "adamw_8bit"},   {"adamw_bnb_8bit", "adamw_8bit"},           {"paged_adamw_8bit", "adamw_8bit"}};

const WordTable kSchedules = {{"linear", "linear"},
                              {"cosine", "cosine"},
                              {"constant", "constant"},
                              {"constant_with_warmup", "constant_with_warmup"},
                              {"cosine_with_min_lr", "cosine_with_min_lr"}};

bool is_auto(const Value& value) { return value.is_null() || value.text == "auto"; }

// The lowest learning rate in lr_scheduler_kwargs, as a share of the peak; nullopt = it has something else.
std::optional<double> least_rate(const Converter& converter, const Value& kwargs) {
  if (!kwargs.is_map() || kwargs.members.size() != 1) return std::nullopt;
  const auto& [name, value] = kwargs.members.front();
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if (!number) return std::nullopt;
  if (name == "min_lr_rate") return number;
  const auto peak = converter.number("learning_rate");
  constexpr double kDigits = 1e12;  // of a quotient, so that 2e-6 / 2e-5 is 0.1
  if (name == "min_lr" && peak && *peak > 0) return std::round(*number / *peak * kDigits) / kDigits;
  return std::nullopt;
}

void convert_schedule_details(Converter& converter, const std::string& key) {
  const bool has_ratio = converter.find("cosine_min_lr_ratio") != nullptr;
  if (const Value* kwargs = converter.find("lr_scheduler_kwargs");
      kwargs && !(kwargs->is_map() && kwargs->members.empty())) {
    const auto share = least_rate(converter, *kwargs);
    if (share) {
      converter.set("lr_scheduler_kwargs", "min_lr_ratio", number_value(*share));
    } else {
      converter.refuse("lr_scheduler_kwargs",
                       "Only the lowest learning rate of cosine_with_min_lr can be set: min_lr_ratio.");
    }
  }
  if (!has_ratio) return;
  const std::string schedule = converter.text_or(key, "cosine");
  if (schedule != "cosine" && schedule != "cosine_with_min_lr") {
    converter.drop("cosine_min_lr_ratio", fmt::format("{}: {} ignores it", key, schedule));
    return;
  }
  if (schedule == "cosine") {
    converter.set(converter.find(key) ? key : "cosine_min_lr_ratio", "lr_scheduler_type", "cosine_with_min_lr");
    converter.share("cosine_min_lr_ratio", "lr_scheduler_type");
  }
  converter.keep("cosine_min_lr_ratio", "min_lr_ratio");
}

// A setting of DeepSpeed's file that decides about the training itself.
std::string result_changing(const Value& settings) {
  for (const char* name : {"optimizer", "scheduler"}) {
    if (const Value* value = settings.find(name); value && !is_auto(*value)) return name;
  }
  if (const Value* clip = settings.find("gradient_clipping"); clip && !is_auto(*clip)) return "gradient_clipping";
  const Value* fp16 = settings.find("fp16");
  const Value* is_on = fp16 ? fp16->find("enabled") : nullptr;
  return is_on && parse_bool(is_on->text) == true ? "fp16" : "";
}

std::optional<Value> deepspeed_file(const Converter& converter, const std::string& name) {
  for (const fs::path& folder : {fs::path(), converter.file().parent_path()}) {
    std::error_code code;
    const fs::path file = folder / name;
    if (!fs::is_regular_file(file, code)) continue;
    try {
      return parse_yaml(read_file(file), {file.string(), 0});
    } catch (const Error&) {  // it is not ours to judge
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// "steps" with a number, "epoch" or "no" become our cadence; false = something else.
bool convert_cadence(Converter& converter, const std::string& strategy_key, const std::string& steps_key,
                     const std::string& ours, const std::string& otherwise, const std::string& default_steps) {
  const std::string strategy = lower_case(converter.text_or(strategy_key, otherwise));
  const bool has_strategy = converter.find(strategy_key) != nullptr, has_steps = converter.find(steps_key) != nullptr;
  if (strategy == "steps") {
    if (has_steps) converter.keep(steps_key, ours);
    if (has_strategy && !has_steps) converter.set(strategy_key, ours, default_steps);
    if (has_strategy && has_steps) converter.share(strategy_key, ours);
    if (!has_strategy && !has_steps) converter.set_default(ours, default_steps);
    return true;
  }
  const std::string word = strategy == "epoch" ? "epoch" : strategy == "no" || strategy == "false" ? "off" : "";
  if (word.empty()) return false;
  if (has_strategy) {
    converter.set(strategy_key, ours, word);
  } else {
    converter.set_default(ours, word);
  }
  if (has_steps) converter.drop(steps_key, fmt::format("{}: {} ignores it", strategy_key, strategy));
  if (word == "off" && ours == "save_steps" && has_strategy) converter.remark(strategy_key, kLastIsSaved);
  return true;
}

}  // namespace

void convert_optimizer(Converter& converter, const std::string& key) {
  if (!converter.find(key)) return;
  const std::string ours = translated(kOptimizers, converter.text(key));
  if (ours.empty()) {
    converter.refuse(key, converter.text(key) + " is not supported. Use adamw_torch or adamw_8bit.");
  } else {
    converter.set(key, "optim", ours);
  }
}

void convert_schedule(Converter& converter, const std::string& key, const std::string& otherwise) {
  if (converter.find(key)) {
    const std::string ours = translated(kSchedules, converter.text(key));
    if (ours.empty()) {
      converter.refuse(
          key, converter.text(key) +
                   " is not supported. Use linear, cosine, constant, constant_with_warmup or cosine_with_min_lr.");
    } else {
      converter.set(key, "lr_scheduler_type", ours);
    }
  }
  convert_schedule_details(converter, key);
  converter.set_default("lr_scheduler_type", otherwise);
}

void convert_warmup(Converter& converter) {
  const auto steps = converter.number("warmup_steps");
  const bool has_ratio = converter.find("warmup_ratio") != nullptr;
  if (steps && *steps > 0) {
    const bool is_share = *steps < 1;
    converter.keep("warmup_steps", is_share ? "warmup_ratio" : "warmup_steps");
    if (has_ratio) converter.drop("warmup_ratio", "overridden by warmup_steps");
  } else if (has_ratio) {
    converter.keep("warmup_ratio", "warmup_ratio");
    if (steps) converter.drop("warmup_steps", "0 leaves it to warmup_ratio");
  } else if (converter.find("warmup_steps")) {
    converter.keep("warmup_steps", "warmup_steps");
  }
}

void convert_max_steps(Converter& converter) {
  const auto steps = converter.number("max_steps");
  if (steps && *steps <= 0) {
    converter.drop("max_steps", "no limit matches what happens anyway");
  } else if (steps) {
    converter.keep("max_steps", "max_steps");
    for (const char* epochs : {"num_epochs", "num_train_epochs"}) {
      if (converter.find(epochs)) converter.drop(epochs, "overridden by max_steps");
    }
  }
}

void convert_precision(Converter& converter, const std::string& without) {
  bool is_bf16 = false, is_said = false;
  for (const char* key : {"bf16", "bfloat16"}) {
    const std::string word = lower_case(converter.text(key));
    if (word.empty()) continue;
    if (word == "auto" || word == "full" || parse_bool(word) == true) {
      is_bf16 = true;
      converter.set(key, "precision", "bf16");
    } else if (parse_bool(word) == false) {
      is_said = true;
    } else {
      converter.refuse(key, fmt::format("got {}, expected true, false, auto or full.", word));
    }
  }
  for (const char* key : {"fp16", "float16"}) {
    if (converter.is_true(key)) {
      converter.refuse(
          key,
          "fp16 overflows in large models and needs loss scaling. Use bf16: true, which all GPUs since Ampere have.");
      is_bf16 = true;
    }
  }
  for (const char* key : {"bf16", "bfloat16"}) {
    if (converter.find(key) && !converter.is_true(key) && is_said) {
      if (is_bf16) {
        converter.drop(key, "false matches what happens anyway");
      } else {
        converter.set(key, "precision", without);
      }
    }
  }
}

void convert_quantization(Converter& converter) {
  for (const auto& [key, ours] : {std::pair{"load_in_4bit", "nf4"}, {"load_in_8bit", "int8"}}) {
    if (!converter.find(key)) continue;
    if (!converter.is_true(key)) {
      converter.drop(key, "false matches what happens anyway");
      continue;
    }
    if (converter.is_set_to("adapter", "none")) {
      converter.refuse(key, "Quantised weights are not trained. Use an adapter, or remove it.");
      continue;
    }
    converter.set(key, "base_precision", ours);
    if (std::string(ours) == "int8") {
      converter.note(key, "only weights are int8 here; bitsandbytes also rounds the activations of its products");
    }
  }
}

void convert_targets(Converter& converter, const std::string& key) {
  const Value* value = converter.find(key);
  if (!value) return;
  const auto is_outside = [](const std::string& name) {
    return name.find("embed_tokens") != std::string::npos || name.find("lm_head") != std::string::npos;
  };
  std::vector<std::string> outside;
  for (const auto& item : items_of(*value)) {
    std::istringstream names(item.is_scalar() ? item.text : "");
    for (std::string name; std::getline(names, name, ',');) {
      if (is_outside(name)) outside.push_back(trimmed(name));
    }
  }
  if (!outside.empty()) {
    return converter.refuse(key, fmt::format("{}{} no adapter. Remove that name, or train all weights.", join(outside),
                                             outside.size() == 1 ? " gets" : " get"));
  }
  if (value->is_list() && value->items.size() == 1 && value->items.front().text.find('|') != std::string::npos) {
    converter.set(key, "lora_target_modules", value->items.front());
  } else {
    converter.keep(key, "lora_target_modules");
  }
}

void default_targets(Converter& converter) {
  converter.set_default("lora_target_modules", list_value({text_value("q_proj"), text_value("v_proj")}),
                        "PEFT's default for these models");
}

void refuse_dora(Converter& converter, const std::string& key, const std::string& rslora) {
  if (!converter.is_true(key)) return;
  converter.refuse(key, "This kind of adapter is not supported. Remove it" +
                            std::string(converter.is_true(rslora) ? fmt::format("; {}: true stays.", rslora)
                                                                  : fmt::format(", or set {}: true.", rslora)));
}

void convert_recomputation(Converter& converter, const std::string& key) {
  const Value* value = converter.find(key);
  if (!value) return;
  const auto is_on = parse_bool(value->text);
  if (is_on) {
    if (*is_on) converter.keep(key, "gradient_checkpointing");
    if (!*is_on) converter.drop(key, "layers are recomputed only if memory requires it; the numbers are the same");
    return;
  }
  converter.set(key, "gradient_checkpointing", "full");
  if (value->text.starts_with("offload")) converter.set(key, "activation_offload", "on");
}

void convert_deepspeed(Converter& converter) {
  const Value* value = converter.find("deepspeed");
  if (!value || (value->is_scalar() && value->text.empty())) return;
  const std::optional<Value> settings = value->is_map() ? *value : deepspeed_file(converter, value->text);
  const std::string changing = settings ? result_changing(*settings) : "";
  if (!changing.empty()) {
    converter.refuse("deepspeed", "its configuration sets its own " + changing +
                                      ". Move that setting into the file to convert, or remove it.");
    return;
  }
  converter.drop("deepspeed", converter.reason_of("fsdp"));
  if (!settings) {
    converter.note("deepspeed", "was not found, so it was not checked for an optimizer, a schedule or clipping");
  }
}

void convert_model(Converter& converter, const std::string& key, const std::string& revision_key) {
  const std::string model = converter.text(key), revision = converter.text(revision_key);
  if (!revision.empty() && revision != "main" && !model.empty()) {
    converter.set(key, "model", fmt::format("{}@{}", model, revision));
    converter.share(revision_key, "model");
    return;
  }
  converter.keep(key, "model");
  if (!revision.empty()) converter.drop(revision_key, "main matches what happens anyway");
}

void convert_held_out(Converter& converter, const std::string& key) {
  const double size = converter.number(key).value_or(0);
  if (size >= 1 && size != std::floor(size)) {
    converter.refuse(key, "got " + converter.text(key) + ", expected a share below 1 or a whole number of examples.");
  } else {
    converter.keep(key, "val_set_size");
  }
}

void convert_best_saves(Converter& converter, const std::string& key, bool has_data) {
  if (!has_data) return converter.refuse(key, "best needs evaluation data. Name it: eval_datasets, or val_set_size.");
  converter.set(key, "save_steps", "off");
  converter.set(key, "load_best_model_at_end", "true");
  converter.note(
      key, "adapter/ also holds the best step; transformers keeps the last one there without load_best_model_at_end");
}

void convert_saving(Converter& converter, bool has_evaluation_data) {
  if (lower_case(converter.text("save_strategy")) == "best") {
    convert_best_saves(converter, "save_strategy", has_evaluation_data);
    if (converter.find("save_steps")) converter.drop("save_steps", "save_strategy: best ignores it");
  } else if (!convert_cadence(converter, "save_strategy", "save_steps", "save_steps", "steps", "500")) {
    converter.refuse("save_strategy", "expected steps, epoch, best or no.");
  }
}

void convert_evaluation(Converter& converter, int logging_steps, bool has_data) {
  const std::string key = converter.find("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
  if (key == "eval_strategy" && converter.find("evaluation_strategy")) {
    converter.drop("evaluation_strategy", "overridden by eval_strategy");
  }
  if (!has_data)
    return converter.drop_group("evaluation", "there is no evaluation data (name it: eval_datasets, or val_set_size)");
  const std::string default_steps = converter.text_or("logging_steps", std::to_string(logging_steps));
  if (!convert_cadence(converter, key, "eval_steps", "eval_steps", "no", default_steps)) {
    converter.refuse(key, "expected steps, epoch or no.");
  }
  if (converter.find("eval_on_start")) {
    converter.keep("eval_on_start", "eval_on_start");
  } else {
    converter.set_default("eval_on_start", "false");
  }
}

void convert_best_model(Converter& converter, const std::string& patience_key, bool has_data) {
  if (const Value* metric = converter.find("metric_for_best_model")) {
    const std::string ours = metric_from(metric->text);
    if (ours.empty()) {
      converter.refuse("metric_for_best_model", "expected eval_loss, perplexity, token_accuracy or ece.");
    } else {
      converter.set("metric_for_best_model", "metric_for_best_model", ours);
    }
  }
  const auto needs_data = [&](const std::string& key, const std::string& ours) {
    const Value* value = key.empty() ? nullptr : converter.find(key);
    if (!value) return;
    if (value->is_scalar() && parse_bool(value->text) == false) {
      converter.drop(key, "false matches what happens anyway");
    } else if (ours == "early_stopping_patience" && converter.is_set_to("eval_steps", "off")) {
      converter.drop(key, "applies only with evaluations during the run");
    } else if (has_data) {
      converter.keep(key, ours);
    } else {
      converter.refuse(key, "needs evaluation data. Name it: eval_datasets, or val_set_size.");
    }
  };
  needs_data("load_best_model_at_end", "load_best_model_at_end");
  needs_data(patience_key, "early_stopping_patience");
}

void convert_reporting(Converter& converter) {
  const Value* value = converter.find("report_to");
  if (!value) {
    converter.set_default("report_to", list_value({}));
    return;
  }
  bool has_tensorboard = false, has_other = false;
  for (const auto& item : items_of(*value)) {
    const std::string word = lower_case(item.text);
    has_tensorboard |= word == "tensorboard" || word == "all";
    has_other |= word != "tensorboard" && word != "none" && !word.empty();
  }
  Value ours = list_value({});
  if (has_tensorboard || has_other) ours.items.push_back(text_value("tensorboard"));
  converter.set("report_to", "report_to", ours);
  if (has_other) {
    converter.remark("report_to", "no live curves elsewhere: see the note");
    converter.note("report_to",
                   "runs work offline, so there is no live dashboard. Watch with `tensorboard --logdir "
                   "OUTPUT_DIR/tensorboard`; `wandb sync OUTPUT_DIR/tensorboard` uploads the curves");
  }
}

void convert_resuming(Converter& converter) {
  const std::string word = converter.text("resume_from_checkpoint");
  if (word.empty()) return;
  const auto is_on = parse_bool(word);
  if (is_on) {
    converter.set("resume_from_checkpoint", "resume_from_checkpoint", *is_on ? "auto" : "none");
  } else {
    converter.keep("resume_from_checkpoint", "resume_from_checkpoint");
  }
}

void convert_trainer(Converter& converter, int logging_steps, bool has_evaluation_data) {
  convert_optimizer(converter, "optim");
  convert_schedule(converter, "lr_scheduler_type", "linear");
  convert_warmup(converter);
  if (!converter.is_set("warmup_ratio")) converter.set_default("warmup_steps", "0");
  convert_max_steps(converter);
  const bool is_unclipped = converter.has("max_grad_norm") && !converter.find("max_grad_norm");
  if (is_unclipped) converter.set("max_grad_norm", "max_grad_norm", "0");
  convert_recomputation(converter, "gradient_checkpointing");
  convert_deepspeed(converter);
  convert_saving(converter, has_evaluation_data);
  convert_evaluation(converter, logging_steps, has_evaluation_data);
  convert_best_model(converter, "", has_evaluation_data);
  convert_reporting(converter);
  convert_resuming(converter);
  const auto logging = converter.number("logging_steps");
  if (logging && *logging < 1) {
    converter.drop("logging_steps", "it is a share of the run, and every step is logged anyway");
  } else {
    converter.keep("logging_steps", "logging_steps");
    converter.set_default("logging_steps", integer_value(logging_steps));
  }
  if (converter.find("data_seed")) {
    if (converter.text("data_seed") == converter.text_or("seed", "42")) {
      converter.drop("data_seed", "seed decides about the data too");
    } else {
      converter.refuse("data_seed", "One seed decides about data and adapter. Set seed.");
    }
  }
}

}  // namespace lora_train
