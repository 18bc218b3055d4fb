#include "training_keys.h"

#include <cmath>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

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

// A setting of DeepSpeed's file that decides about the training itself.
std::string result_changing(const Value& settings) {
  for (const char* name : {"optimizer", "scheduler"}) {
    if (const Value* value = settings.find(name); value && !is_auto(*value)) return name;
  }
  if (const Value* clip = settings.find("gradient_clipping"); clip && !is_auto(*clip)) return "gradient_clipping";
  const Value* fp16 = settings.find("fp16");
  return fp16 && parse_bool(fp16->text_of("enabled")) == true ? "fp16" : "";
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
bool convert_cadence(Converter& converter, const std::string& strategy_key, const std::string& ours,
                     const std::string& otherwise, const std::string& default_steps) {
  const std::string strategy = lower_case(converter.text_or(strategy_key, otherwise));
  const bool has_strategy = converter.find(strategy_key) != nullptr, has_steps = converter.find(ours) != nullptr;
  if (strategy == "steps" && has_steps) {
    converter.keep(ours, ours);
    if (has_strategy) converter.share(strategy_key, ours);
    return true;
  }
  const bool is_off = strategy == "no" || strategy == "false";
  if (!is_off && strategy != "steps" && strategy != "epoch") return false;
  const std::string word = is_off ? "off" : strategy == "epoch" ? "epoch" : default_steps;
  has_strategy ? converter.set(strategy_key, ours, word) : converter.set_default(ours, word);
  if (has_steps) converter.drop(ours, fmt::format("{}: {} ignores it", strategy_key, strategy));
  if (is_off && ours == "save_steps" && has_strategy) converter.remark(strategy_key, kLastIsSaved);
  return true;
}

}  // namespace

void convert_schedule(Converter& converter, const std::string& key) {
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

void convert_precision(Converter& converter) {
  const bool is_half = converter.is_true("fp16") || converter.is_true("float16");
  for (const char* key : {"bf16", "bfloat16"}) {
    const bool is_decided = is_half || converter.is_set_to("precision", "bf16");
    if (is_decided && parse_bool(converter.text(key)) == false)
      converter.drop(key, "false matches what happens anyway");
    converter.decide(key);
  }
}

void convert_quantization(Converter& converter, const std::string& key) {
  const bool is_off = parse_bool(converter.text(key)) == false;
  if (converter.find(key) && !is_off && converter.is_set_to("adapter", "none"))
    converter.refuse(key, "Quantised weights are not trained. Use an adapter, or remove it.");
  converter.decide(key);
}

void convert_targets(Converter& converter, const std::string& key) {
  const Value* value = converter.find(key);
  if (!value) return;
  std::vector<std::string> outside = names_in(*value);
  std::erase_if(outside, [](const std::string& name) {
    return name.find("embed_tokens") == std::string::npos && name.find("lm_head") == std::string::npos;
  });
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

void convert_new_tokens(Converter& converter, const std::string& key, const Value& tokens) {
  if (converter.is_set_to("adapter", "none")) {
    return converter.refuse(key, "new rows are trained only together with an adapter. Train one, or remove the key.");
  }
  converter.set(key, "add_tokens", tokens);
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
  } else if (!convert_cadence(converter, "save_strategy", "save_steps", "steps", "500")) {
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
  if (!convert_cadence(converter, key, "eval_steps", "no", default_steps)) {
    converter.refuse(key, "expected steps, epoch or no.");
  }
  converter.set_default("eval_on_start", "false");
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

void convert_trainer(Converter& converter, int logging_steps, bool has_evaluation_data) {
  convert_schedule(converter, "lr_scheduler_type");
  convert_warmup(converter);
  if (!converter.is_set("warmup_ratio")) converter.set_default("warmup_steps", "0");
  convert_max_steps(converter);
  const bool is_unclipped = converter.has("max_grad_norm") && !converter.find("max_grad_norm");
  if (is_unclipped) converter.set("max_grad_norm", "max_grad_norm", "0");
  converter.decide("gradient_checkpointing");  // before disable_gradient_checkpointing, which wins
  convert_deepspeed(converter);
  convert_saving(converter, has_evaluation_data);
  convert_evaluation(converter, logging_steps, has_evaluation_data);
  convert_best_model(converter, "", has_evaluation_data);
  convert_reporting(converter);
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
