#include "run_keys.h"

#include <cmath>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/metric_names.h"
#include "lora_train/config/value/scalar.h"
#include "training_keys.h"

namespace lora_train {
namespace {

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
  if (has_steps) converter.drop(steps_key, "says nothing with " + strategy_key + ": " + strategy);
  if (word == "off" && ours == "save_steps" && has_strategy) converter.remark(strategy_key, kLastIsSaved);
  return true;
}

}  // namespace

void convert_held_out(Converter& converter, const std::string& key) {
  const double size = converter.number(key).value_or(0);
  if (size >= 1 && size != std::floor(size)) {
    converter.refuse(key, "got " + converter.text(key) + ", expected a share below 1 or a whole number of rows.");
  } else {
    converter.keep(key, "val_set_size");
  }
}

void convert_best_saves(Converter& converter, const std::string& key, bool has_data) {
  if (!has_data) return converter.refuse(key, "best needs evaluation data. Name it: eval_datasets, or val_set_size.");
  converter.set(key, "save_steps", "off");
  converter.set(key, "load_best_model_at_end", "true");
  converter.note(key, "adapter/ is the best step too; there, it is the last one without load_best_model_at_end");
}

void convert_saving(Converter& converter, bool has_evaluation_data) {
  if (lower_case(converter.text("save_strategy")) == "best") {
    convert_best_saves(converter, "save_strategy", has_evaluation_data);
    if (converter.find("save_steps")) converter.drop("save_steps", "says nothing with save_strategy: best");
  } else if (!convert_cadence(converter, "save_strategy", "save_steps", "save_steps", "steps", "500")) {
    converter.refuse("save_strategy", "expected steps, epoch, best or no.");
  }
  if (!converter.find("save_total_limit")) converter.set_default("save_total_limit", "null");
}

void convert_evaluation(Converter& converter, int logging_steps, bool has_data) {
  const std::string key = converter.find("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
  if (key == "eval_strategy" && converter.find("evaluation_strategy")) {
    converter.drop("evaluation_strategy", "says nothing beside eval_strategy");
  }
  if (!has_data) {
    for (const char* name : {"eval_strategy", "evaluation_strategy", "eval_steps", "eval_on_start"}) {
      if (converter.find(name))
        converter.drop(name, "there is no evaluation data (name it: eval_datasets, or val_set_size)");
    }
    return;
  }
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
      converter.drop(key, "false asks for what is done anyway");
    } else if (ours == "early_stopping_patience" && converter.is_set_to("eval_steps", "off")) {
      converter.drop(key, "says nothing without evaluations during the run");
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
  for (const auto& item : value->is_list() ? value->items : std::vector<Value>{*value}) {
    const std::string word = lower_case(item.text);
    has_tensorboard |= word == "tensorboard" || word == "all";
    has_other |= word != "tensorboard" && word != "none" && !word.empty();
  }
  Value ours = list_value({});
  if (has_tensorboard || has_other) ours.items.push_back(text_value("tensorboard"));
  converter.set("report_to", "report_to", ours);
  if (has_other) {
    converter.remark("report_to", "no live curves elsewhere: see the note");
    converter.note(
        "report_to",
        "a run never touches the network, so nobody else's page shows it live. Watch with `tensorboard --logdir "
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

void convert_trainer(Converter& converter, double learning_rate, int logging_steps, bool has_evaluation_data) {
  converter.set_default("learning_rate", number_value(learning_rate));
  convert_optimizer(converter, "optim");
  convert_schedule(converter, "lr_scheduler_type", "linear");
  convert_warmup(converter);
  if (!converter.is_set("warmup_ratio")) converter.set_default("warmup_steps", "0");
  convert_max_steps(converter);
  const bool is_unclipped = converter.has("max_grad_norm") && !converter.find("max_grad_norm");
  if (is_unclipped) converter.set("max_grad_norm", "max_grad_norm", "0");
  if (!converter.find("per_device_train_batch_size")) converter.set_default("micro_batch_size", "8");
  if (!converter.find("gradient_accumulation_steps")) converter.set_default("gradient_accumulation_steps", "1");
  convert_recomputation(converter, "gradient_checkpointing");
  convert_deepspeed(converter);
  convert_saving(converter, has_evaluation_data);
  convert_evaluation(converter, logging_steps, has_evaluation_data);
  convert_best_model(converter, "", has_evaluation_data);
  convert_reporting(converter);
  convert_resuming(converter);
  const auto logging = converter.number("logging_steps");
  if (logging && *logging < 1) {
    converter.drop("logging_steps", "a share of the run; every step is logged");
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
  for (const char* key : {"use_cpu", "no_cuda"}) {
    if (converter.is_true(key)) converter.set(key, "device", "cpu");
  }
  const std::string sampling = converter.text("train_sampling_strategy");
  if (sampling == "random") converter.drop("train_sampling_strategy", "random asks for what is done anyway");
  if (sampling == "sequential") converter.set("train_sampling_strategy", "shuffle", "false");
  if (sampling != "random" && sampling != "sequential" && !sampling.empty()) {
    converter.refuse("train_sampling_strategy",
                     "Rows of like length are not grouped. Use packing, which wastes no padding either.");
  }
  if (converter.find("per_device_eval_batch_size")) {
    converter.keep("per_device_eval_batch_size", "eval_micro_batch_size");
  }
}

}  // namespace lora_train
