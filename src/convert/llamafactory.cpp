#include <algorithm>

#include "converter.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "tool_keys.h"
#include "training_keys.h"

namespace lora_train {
namespace {

// The adapter that the run starts from. Returns whether there is one.
bool convert_factory_first_adapter(Converter& converter) {
  const std::string adapter = converter.text("adapter_name_or_path");
  if (adapter.empty()) return false;
  if (adapter.find(',') != std::string::npos) {
    converter.refuse("adapter_name_or_path",
                     "A run starts from one adapter. Merge the others first: lora-train merge.");
    return true;
  }
  const std::string folder = converter.text("adapter_folder");
  converter.set("adapter_name_or_path", "init_adapter", folder.empty() ? adapter : folder + "/" + adapter);
  if (!folder.empty()) converter.share("adapter_folder", "init_adapter");
  return true;
}

void convert_factory_adapter(Converter& converter) {
  converter.decide("finetuning_type");
  if (converter.is_set_to("adapter", "none"))
    return converter.drop_group("adapter", "finetuning_type: full ignores it");
  if (converter.find("create_new_adapter") && converter.text("adapter_name_or_path").empty()) {
    converter.drop("create_new_adapter", "applies only with adapter_name_or_path");
  }
  if (convert_factory_first_adapter(converter)) return converter.drop_group("shape", kBringsShape);
  const auto rank = converter.number("lora_rank");
  if (!rank) converter.set_default("lora_r", "8");
  converter.set_default("lora_alpha", number_value(2 * rank.value_or(8)), "LLaMA-Factory's default is twice the rank");
  if (const Value* target = converter.find("lora_target")) {
    if (target->text == "all") {
      converter.set("lora_target", "lora_target_modules", "all-linear");
    } else {
      convert_targets(converter, "lora_target");
    }
  }
}

void convert_factory_base_precision(Converter& converter) {
  convert_quantization(converter, "quantization_bit");
  for (const char* key : {"quantization_method", "quantization_type"}) {
    if (converter.find(key) && !converter.find("quantization_bit"))
      converter.drop(key, "applies only with quantization_bit");
  }
  convert_precision(converter);
}

void convert_factory_loss(Converter& converter) {
  if (converter.is_true("train_on_prompt") && converter.is_true("mask_history"))
    converter.refuse("mask_history", "train_on_prompt is also true, which LLaMA-Factory refuses. Keep one.");
}

void note_skipped_examples(Converter& converter, const std::vector<DataEntry>& train) {
  const auto is_chat = [](const DataEntry& entry) {
    return entry.type == DatasetType::kMessages || entry.type == DatasetType::kSharegpt;
  };
  if (!std::ranges::any_of(train, is_chat)) return;
  converter.note(
      "dataset",
      "LLaMA-Factory skips chats that begin with the assistant, end with the user, or in which the two do not take "
      "turns; here their answers are trained, unless the chat template refuses such an example, which is then a bad "
      "example (on_bad_row: drop leaves it out)");
}

// Returns whether there is evaluation data.
bool convert_factory_data(Converter& converter, const std::vector<DataEntry>& train) {
  if (!train.empty()) converter.set("dataset", "datasets", to_value(train));
  const auto test = convert_llamafactory_datasets(converter, "eval_dataset");
  if (!test.empty()) converter.set("eval_dataset", "eval_datasets", to_value(test));
  const bool has_data = converter.find("dataset") || converter.find("eval_dataset");
  if (converter.find("dataset_dir")) {
    if (!train.empty()) converter.share("dataset_dir", "datasets");
    if (train.empty() && !test.empty()) converter.share("dataset_dir", "eval_datasets");
    if (train.empty() && test.empty())
      converter.drop("dataset_dir", has_data ? "dataset decides" : "no dataset is named");
  }
  if (converter.find("max_samples") && !converter.is_refused("max_samples")) {
    if (converter.is_refused("dataset") || converter.is_refused("eval_dataset")) {
      converter.drop("max_samples", "belongs to the dataset, which is refused");
    } else if (parse_integer(converter.text("max_samples")).value_or(0) < 1) {
      converter.refuse("max_samples", "expected a number of examples.");
    } else {
      const auto is_cut = [](const DataEntry& entry) { return entry.max_samples.has_value(); };
      if (std::ranges::any_of(train, is_cut)) converter.share("max_samples", "datasets");
      if (std::ranges::any_of(test, is_cut)) converter.share("max_samples", "eval_datasets");
      converter.drop("max_samples", has_data ? "no file has more examples" : "no dataset is named");
    }
  }
  const double held_out = converter.number("val_size").value_or(0);
  if (held_out > 0 && converter.find("eval_dataset")) {
    converter.refuse("val_size", "eval_dataset is set too, which LLaMA-Factory refuses. Keep one.");
  } else if (held_out > 0) {
    convert_held_out(converter, "val_size");
  }
  if (converter.find("val_size") && held_out <= 0) converter.drop("val_size", "nothing is held out");
  return held_out > 0 || converter.find("eval_dataset");
}

void convert_factory_packing(Converter& converter) {
  const bool is_neat = converter.is_true("neat_packing");
  if (is_neat) converter.set("neat_packing", "packing", "true");
  if (converter.find("neat_packing") && !is_neat)
    converter.drop("neat_packing", "documents in a row never see each other");
  if (converter.find("packing")) {
    is_neat ? converter.share("packing", "packing") : converter.keep("packing", "packing");
    if (!is_neat && converter.is_true("packing")) {
      converter.note("packing", "documents in a row never see each other here, as with neat_packing: true");
    }
  } else if (!is_neat) {
    converter.set_default("packing", converter.text("stage") == "pt" ? "true" : "false");
  }
  converter.set_default(
      "overlength", "truncate",
      "LLaMA-Factory cuts each prompt and answer in proportion; here the end of an example is cut, and one whose "
      "prompt leaves no room is dropped: raise max_seq_len if there are any");
}

void convert_factory_tokens(Converter& converter) {
  for (const char* key : {"add_tokens", "add_special_tokens"}) {
    const Value* value = converter.find(key);
    if (!value) continue;
    Value names = value->is_list() ? *value : list_value({});
    if (!value->is_list()) {
      for (const std::string& token : names_in(*value)) names.items.push_back(text_value(token));
    }
    convert_new_tokens(converter, key, std::string(key) == "add_tokens" ? names : verbatim_tokens(names));
  }
}

}  // namespace

void convert_llamafactory(Converter& converter) {
  convert_model(converter, "model_name_or_path", "model_revision");
  converter.decide("stage");
  convert_factory_adapter(converter);
  convert_factory_base_precision(converter);
  auto train = convert_llamafactory_datasets(converter, "dataset");
  weigh_interleaved_datasets(converter, train);
  convert_llamafactory_template(converter, train);
  convert_factory_loss(converter);
  note_skipped_examples(converter, train);
  const bool has_eval_data = convert_factory_data(converter, train);
  convert_factory_packing(converter);
  convert_factory_tokens(converter);
  convert_trainer(converter, 500, has_eval_data);
  convert_best_model(converter, "early_stopping_steps", has_eval_data);
}

}  // namespace lora_train
