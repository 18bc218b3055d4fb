#include <algorithm>

#include "converter.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/value/value.h"
#include "training_keys.h"

namespace lora_train {
namespace {

void convert_axolotl_adapter(Converter& converter) {
  const std::string kind = lower_case(converter.text("adapter"));
  if (kind.empty()) {
    converter.drop_group("adapter", "applies only with adapter");
    converter.set_default("adapter", "none");
    return;
  }
  if (kind != "lora" && kind != "qlora") {
    converter.refuse("adapter", kind + " is not supported. Use lora or qlora.");
    return;
  }
  converter.set("adapter", "adapter", "lora");
  if (kind == "qlora" && !converter.is_true("load_in_4bit")) converter.set("adapter", "base_precision", "nf4");
  if (converter.find("lora_model_dir")) return converter.drop_group("shape", kBringsShape);
  convert_targets(converter, "lora_target_modules");
  if (converter.is_true("lora_target_linear")) {
    converter.set("lora_target_linear", "lora_target_modules", "all-linear");
    if (converter.find("lora_target_modules") && !converter.is_refused("lora_target_modules")) {
      converter.share("lora_target_modules", "lora_target_modules");
    }
  } else if (converter.find("lora_target_linear")) {
    converter.drop("lora_target_linear", "false leaves it to lora_target_modules");
  }
  if (!converter.find("lora_target_modules") && !converter.is_true("lora_target_linear")) {
    converter.note(
        "adapter",
        "names no linears, which Axolotl refuses; here all linears get an adapter (lora_target_modules: all-linear)");
  }
}

// Axolotl wants them with `tokens`.
void refuse_axolotl_modules(Converter& converter) {
  const Value* modules = converter.find("lora_modules_to_save");
  const Value* tokens = converter.find("tokens");
  if (!modules || modules->items.empty() || !tokens || tokens->items.empty() || !converter.find("adapter")) return;
  converter.refuse("lora_modules_to_save",
                   "Whole modules cannot be trained alongside an adapter. In embedding and head, only the rows of new "
                   "tokens are trained and saved with it (add_tokens); the others stay as they are. If that is enough: "
                   "--allow-refused lora_modules_to_save. To train all rows, train all weights (no adapter).");
}

// Options of BitsAndBytesConfig in addition to Axolotl's own: nf4, double quantisation, computed in the run's
// precision.
void convert_axolotl_bnb(Converter& converter) {
  const Value* settings = converter.find("bnb_config_kwargs");
  if (!settings || settings->members.empty()) return;
  if (!converter.is_set_to("base_precision", "nf4")) {
    return converter.drop("bnb_config_kwargs", "applies only with adapter: qlora and load_in_4bit");
  }
  const std::string precision = converter.is_set_to("precision", "fp32") ? "float32" : "bfloat16";
  std::vector<std::string> others;
  for (const auto& [name, value] : settings->members) {
    const std::string word = value.text.starts_with("torch.") ? value.text.substr(6) : value.text;
    const bool is_idle = name == "bnb_4bit_quant_storage" || name.starts_with("llm_int8_") || value.is_null() ||
                         (name == "load_in_4bit" && parse_bool(word) == true);
    const bool is_same = (name == "bnb_4bit_quant_type" && word == "nf4") || (name == "blocksize" && word == "64") ||
                         (name == "bnb_4bit_compute_dtype" && word == precision);
    if (name == "bnb_4bit_use_double_quant" && parse_bool(word)) {
      converter.set("bnb_config_kwargs", "double_quant", word);
    } else if (!is_idle && !is_same) {
      others.push_back(fmt::format("{}: {}", name, value.text));
    }
  }
  if (!others.empty()) {
    converter.refuse("bnb_config_kwargs", "4-bit weights are nf4 in blocks of 64, and products are computed in " +
                                              precision + ": only bnb_4bit_use_double_quant may differ. Remove " +
                                              join(others) + ".");
  } else if (!converter.is_set("double_quant")) {
    converter.drop("bnb_config_kwargs", "matches what load_in_4bit does anyway");
  }
}

void convert_axolotl_tokens(Converter& converter) {
  const Value* tokens = converter.find("tokens");
  if (tokens && !(tokens->is_list() && tokens->items.empty()))
    convert_new_tokens(converter, "tokens", verbatim_tokens(*tokens));
}

void convert_axolotl_plugins(Converter& converter) {
  const Value* plugins = converter.find("plugins");
  if (!plugins) return;
  for (const auto& plugin : items_of(*plugins)) {
    const bool is_kernel =
        plugin.text.find("liger") != std::string::npos || plugin.text.find("cut_cross_entropy") != std::string::npos ||
        plugin.text.find("integrations.kernels") != std::string::npos ||
        plugin.text.find("swanlab") != std::string::npos || plugin.text.find("lm_eval") != std::string::npos;
    if (is_kernel) continue;
    converter.refuse("plugins", plugin.text + " changes the training and is not supported. Remove it.");
    return;
  }
  converter.drop("plugins", "attention and kernels are lora-train's own; the numbers agree");
}

// A number per epoch, as the share of the run that Axolotl makes it.
void convert_axolotl_per_epoch(Converter& converter, const std::string& key, const std::string& ours) {
  const double epochs = converter.number("num_epochs").value_or(1), times = converter.number(key).value_or(0);
  const double share = times > 0 && epochs > 0 ? 1 / (times * epochs) : 2;
  if (times == 1 || share == 1) {
    converter.set(key, ours, "epoch");
  } else {
    converter.set(key, ours, share < 1 ? number_value(share) : text_value("off"));
    const auto text = [](double number) { return number_value(number).text; };
    if (share < 1) converter.explain(ours, key + ": 1 / (" + text(times) + " per epoch x " + text(epochs) + " epochs)");
  }
}

// saves_per_epoch and save_steps, else a strategy; the same for "eval", which has evaluation_strategy as well.
// `otherwise`: if the file says none of them.
void convert_axolotl_cadence(Converter& converter, const std::string& action, const std::string& otherwise,
                             bool has_eval_data) {
  const std::string per_epoch = action + "s_per_epoch", steps = action + "_steps";
  if (converter.number(per_epoch).value_or(0) > 0) {
    convert_axolotl_per_epoch(converter, per_epoch, steps);
    if (converter.find(steps)) converter.drop(steps, "overridden by " + per_epoch);
  } else if (converter.find(per_epoch)) {
    converter.drop(per_epoch, fmt::format("0 leaves it to {}_strategy", action));
  }
  if (!converter.is_set(steps)) converter.keep(steps, steps);
  for (const std::string& key : {action + "_strategy", action + "uation_strategy"}) {
    const std::string word = lower_case(converter.text(key));
    if (word.empty()) continue;
    if (word == "best" && action == "save" && !converter.is_set(steps)) {
      convert_best_saves(converter, key, has_eval_data);
    } else if ((word == "epoch" || word == "no" || word == "false") && !converter.is_set(steps)) {
      converter.set(key, steps, word == "epoch" ? "epoch" : "off");
      if (word != "epoch" && action == "save") converter.remark(key, kLastIsSaved);
    } else {
      converter.drop(key, "the number of steps decides");
    }
  }
  converter.set_default(steps, otherwise);
}

// Returns whether there is evaluation data.
bool convert_axolotl_data(Converter& converter) {
  const auto train = convert_axolotl_datasets(converter, "datasets");
  if (converter.find("datasets") && !converter.is_refused("datasets"))
    converter.set("datasets", "datasets", to_value(train));
  const auto test = convert_axolotl_datasets(converter, "test_datasets");
  if (!test.empty()) converter.set("test_datasets", "eval_datasets", to_value(test));
  const double held_out = converter.number("val_set_size").value_or(0);
  if (held_out > 0 && test.empty()) convert_held_out(converter, "val_set_size");
  if (converter.find("val_set_size") && !converter.is_set("val_set_size")) {
    converter.drop("val_set_size", "nothing is held out");
  }
  if (converter.find("chat_template")) {
    convert_axolotl_template(converter, "chat_template", converter.text("chat_template"),
                             converter.text("chat_template_jinja"));
  } else if (converter.find("chat_template_jinja")) {
    convert_axolotl_template(converter, "chat_template_jinja", "jinja", converter.text("chat_template_jinja"));
  }
  const std::string strategy = lower_case(converter.text("excess_length_strategy"));
  const bool has_texts =
      std::ranges::any_of(train, [](const DataEntry& entry) { return entry.type == DatasetType::kText; });
  if (strategy.empty() && !has_texts) converter.set_default("overlength", "drop");
  if (strategy == "drop" || (strategy.empty() && !has_texts)) {
    converter.set_default("max_drop_fraction", "1", "Axolotl drops any number of examples");
  }
  return held_out > 0 || !test.empty();
}

void convert_axolotl_run(Converter& converter, bool has_eval_data) {
  if (has_eval_data) {
    convert_axolotl_cadence(converter, "eval", "off", has_eval_data);
  } else {
    converter.drop_group("evaluation", "there is no evaluation data (val_set_size or test_datasets)");
  }
  convert_axolotl_cadence(converter, "save", "epoch", has_eval_data);
  convert_best_model(converter, "early_stopping_patience", has_eval_data);
  const bool reports = std::ranges::any_of(
      std::vector<std::string>{"use_wandb", "use_mlflow", "use_comet", "use_trackio", "use_swanlab", "wandb_project"},
      [&](const std::string& key) {
        return converter.find(key) && (converter.is_true(key) || key == "wandb_project");
      });
  if (converter.find("report_to")) convert_reporting(converter);
  if (!reports) converter.set_default("report_to", list_value({}));
}

void convert_axolotl_compute(Converter& converter) {
  convert_precision(converter);
  converter.decide("float32");
  for (const char* key : {"load_in_4bit", "load_in_8bit"}) convert_quantization(converter, key);
  convert_axolotl_bnb(converter);
  convert_deepspeed(converter);
}

}  // namespace

void convert_axolotl(Converter& converter) {
  convert_model(converter, "base_model", converter.find("model_revision") ? "model_revision" : "revision_of_model");
  convert_axolotl_adapter(converter);
  convert_axolotl_tokens(converter);
  refuse_axolotl_modules(converter);
  convert_axolotl_plugins(converter);
  convert_axolotl_run(converter, convert_axolotl_data(converter));
  convert_axolotl_end_tokens(converter);
  convert_axolotl_compute(converter);
  convert_schedule(converter, "lr_scheduler");
  convert_warmup(converter);
  if (!converter.is_set("warmup_steps")) converter.set_default("warmup_ratio", "0.03");
  convert_max_steps(converter);
  if (!converter.is_set("max_steps")) converter.set_default("num_epochs", "1");
}

}  // namespace lora_train
