#include <algorithm>

#include "converter.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "lora_train/data/first_examples.h"
#include "tool_keys.h"
#include "training_keys.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

void convert_trl_adapter(Converter& converter) {
  converter.decide("use_peft");
  converter.set_default("adapter", "none");
  if (converter.is_set_to("adapter", "none"))
    return converter.drop_group("adapter", "applies only with use_peft: true");
  converter.set_default("lora_dropout", "0.05");
  convert_targets(converter, "lora_target_modules");
  converter.set_default("lora_target_modules", list_value({text_value("q_proj"), text_value("v_proj")}),
                        "PEFT's default for these models");
}

void convert_trl_base_precision(Converter& converter) {
  for (const char* key : {"load_in_4bit", "load_in_8bit"}) convert_quantization(converter, key);
  if (converter.is_true("load_in_4bit")) {
    converter.keep("use_bnb_nested_quant", "double_quant");
    converter.set_default("double_quant", "false");
  } else if (converter.find("use_bnb_nested_quant")) {
    converter.drop("use_bnb_nested_quant", "applies only with load_in_4bit");
  }
  convert_precision(converter);
}

/// The data, as far as the file and the disk show them.
struct TrlData {
  std::vector<DataEntry> train, test;
};

// The split of a dataset on the disk, or its name.
std::string path_of_split(const std::string& dataset, const std::string& split) {
  std::error_code code;
  if (!fs::is_directory(dataset, code)) return dataset;
  return split_path(dataset, split).value_or(dataset);
}

// dataset_name, of the Hub, whose cache may be filled later, or on the disk.
void add_trl_named_dataset(Converter& converter, TrlData& data) {
  const std::string name = converter.text("dataset_name"), subset = converter.text("dataset_config");
  const std::string train = converter.text_or("dataset_train_split", "train"),
                    test = converter.text_or("dataset_test_split", "test");
  const bool evaluates = lower_case(converter.text_or("eval_strategy", "no")) != "no";
  std::error_code code;
  const bool is_hub = is_hub_dataset(name), is_folder = fs::is_directory(name, code);
  std::string split_advice, subset_advice;
  if (is_hub) {
    data.train.emplace_back(name, train == "train" ? "" : train, subset);
    if (evaluates) data.test.emplace_back(name, test, subset);
    split_advice = split_problem(train);
  } else {
    data.train.emplace_back(path_of_split(name, train));
    if (const auto path = is_folder && evaluates ? split_path(name, test) : std::nullopt) data.test.emplace_back(*path);
    subset_advice = "Only a Hub dataset has configurations. Name its files as `datasets`.";
    if (!is_folder && train != "train")
      split_advice = "Download the dataset and name the file of the split as `datasets`.";
  }
  converter.set("dataset_name", "datasets", to_value(data.train));
  for (const auto& [key, advice] :
       {std::pair{"dataset_train_split", split_advice}, {"dataset_config", subset_advice}}) {
    if (converter.find(key)) advice.empty() ? converter.share(key, "datasets") : converter.refuse(key, advice);
  }
  if (data.test.empty() && converter.find("dataset_test_split")) {
    converter.drop("dataset_test_split",
                   evaluates ? "only the dataset's files show that split: name its files as eval_datasets"
                             : "nothing is evaluated with eval_strategy: no");
  } else if (converter.find("dataset_test_split")) {
    converter.set("dataset_test_split", "eval_datasets", to_value(data.test));
  } else if (!data.test.empty()) {
    converter.set_default("eval_datasets", to_value(data.test), "the test split, which TRL evaluates");
  }
}

void add_trl_mixture(Converter& converter, TrlData& data) {
  const Value* list = converter.find("datasets");
  const std::vector<Value> items = list->is_list() ? list->items : std::vector<Value>{};
  if (items.empty()) converter.refuse("datasets", "expected a list of maps with path.");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string path = items[i].text_of("path"), split = items[i].text_of("split");
    const bool is_hub = is_hub_dataset(path) && items[i].find("data_files") == nullptr;
    if (is_hub) {
      data.train.emplace_back(path, split == "train" ? "" : split, items[i].text_of("name"));
      if (const std::string problem = split_problem(split); !problem.empty())
        converter.refuse(fmt::format("datasets[{}].split", i), problem);
    }
    std::vector<std::string> paths;
    if (const Value* files = items[i].find("data_files"); files && !files->is_map() && !files->is_null()) {
      for (const auto& file : items_of(*files)) paths.push_back(file.text);
    } else if (!is_hub) {
      paths.push_back(path_of_split(path, split.empty() ? "train" : split));
    }
    const std::string place = fmt::format("datasets[{}].", i);
    for (const auto& [name, value] : items[i].members) {
      const bool is_idle = value.is_null() || name == "path" || name == "data_files" || name == "columns" ||
                           (name == "split" && (is_hub || value.text == "train")) || (name == "name" && is_hub);
      if (!is_idle)
        converter.refuse(place + name,
                         "Name the files themselves as data_files; `weight` gives a dataset another share.");
    }
    for (const auto& file : paths) data.train.emplace_back(file);
  }
  converter.set("datasets", "datasets", to_value(data.train));
  for (const char* key : {"dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"}) {
    if (converter.find(key)) converter.drop(key, "overridden by datasets");
  }
}

/// Keys of the first example; empty if there is no file.
std::vector<std::string> example_keys(const TrlData& data) {
  return data.train.empty() ? std::vector<std::string>{} : data::example_keys(data.train.front().path, 1);
}

/// Preference examples in local files: the chosen answers are trained.
void map_chosen_answers(Converter& converter, TrlData& data) {
  const std::vector<std::string> keys = example_keys(data);
  const auto has = [&](const char* name) { return std::ranges::count(keys, name) > 0; };
  if (!has("prompt") || !has("chosen")) return;
  for (auto* entries : {&data.train, &data.test}) {
    for (auto& entry : *entries) entry.map("completion", "chosen");
  }
  const std::string source = converter.find("datasets") ? "datasets" : "dataset_name";
  converter.set(source, "datasets", to_value(data.train));
  if (!data.test.empty()) converter.set(source, "eval_datasets", to_value(data.test));
  converter.set_default("loss_on", "completion", "trains only the chosen answers");
}

// By default, TRL trains whole chats, and the completion of examples that have one.
void convert_trl_loss(Converter& converter, const std::vector<std::string>& keys) {
  if (converter.is_true("assistant_only_loss")) {
    converter.set("assistant_only_loss", "loss_on", "assistant");
  } else if (converter.find("assistant_only_loss")) {
    converter.drop("assistant_only_loss", "false leaves it to completion_only_loss");
  }
  const auto has = [&](const char* name) { return std::ranges::count(keys, name) > 0; };
  const bool has_other_examples = !keys.empty() && !has("completion");
  if (converter.find("completion_only_loss")) {
    if (converter.is_true("completion_only_loss") && has_other_examples) {
      converter.drop("completion_only_loss", "applies only to examples with a completion");
    } else if (converter.is_set("loss_on")) {
      converter.share("completion_only_loss", "loss_on");
    } else {
      converter.set("completion_only_loss", "loss_on",
                    converter.is_true("completion_only_loss") ? "completion" : "all");
    }
  }
  if (converter.is_set("loss_on")) return;
  if (has("completion")) {
    converter.set_default("loss_on", "completion", "TRL trains the completion of such examples");
  } else {
    converter.set_default("loss_on", "all", "TRL trains all tokens of chats and texts; assistant trains only answers");
    if (keys.empty()) {
      converter.note("loss_on",
                     "all is right for examples with messages or text; examples with prompt and completion need "
                     "loss_on: completion");
    }
  }
}

void convert_trl_text_column(Converter& converter, TrlData& data) {
  const std::string column = converter.text("dataset_text_field");
  if (column.empty()) return;
  if (column == "text") {
    converter.drop("dataset_text_field", "text matches what happens anyway");
    return;
  }
  for (auto& entry : data.train) entry.map("text", column);
  for (auto& entry : data.test) entry.map("text", column);
  const std::string source = converter.find("datasets") ? "datasets" : "dataset_name";
  converter.set(source, "datasets", to_value(data.train));
  converter.share("dataset_text_field", "datasets");
  if (converter.is_set("eval_datasets")) converter.set("dataset_text_field", "eval_datasets", to_value(data.test));
}

void convert_trl_length(Converter& converter) {
  const std::string key = converter.has("max_length") ? "max_length" : "max_seq_length";
  if (converter.has(key) && !converter.find(key)) {
    converter.set(key, "max_seq_len", "auto");
  } else {
    converter.keep(key, "max_seq_len");
    converter.set_default("max_seq_len", "1024");
    if (converter.text_or("truncation_mode", "keep_start") == "keep_start")
      converter.set_default("overlength", "truncate");
  }
  if (key == "max_length" && converter.find("max_seq_length"))
    converter.drop("max_seq_length", "overridden by max_length");
  const std::string strategy = converter.text("packing_strategy");
  if (strategy == "bfd") converter.drop("packing_strategy", "rows are filled by lora-train's own packing");
  if (!strategy.empty() && strategy != "bfd") {
    if (converter.is_true("packing")) {
      converter.refuse("packing_strategy",
                       "Documents stay whole in a packed row. Remove it, or cut the texts beforehand.");
    } else {
      converter.drop("packing_strategy", "applies only with packing");
    }
  }
}

void convert_trl_end_token(Converter& converter, const std::vector<std::string>& keys) {
  if (!converter.find("eos_token")) return;
  if (std::ranges::count(keys, "messages") > 0 || converter.is_true("assistant_only_loss")) {
    converter.drop("eos_token",
                   "what ends a turn in the template is trained, and the result's generation_config.json names it");
  } else if (converter.text("eos_token") == token_of_model(converter.text("model_name_or_path"), "eos_token")) {
    converter.drop("eos_token", "is the tokenizer's own");
  } else {
    converter.refuse(
        "eos_token",
        "Texts end with the tokenizer's own end token. To use another one, set eos_token in tokenizer_config.json.");
  }
}

void convert_trl_model_arguments(Converter& converter) {
  const Value* arguments = converter.find("model_init_kwargs");
  if (!arguments || !arguments->is_map()) return;
  const auto& loading = converter.tool().groups.at("loading");
  const auto changes_nothing = [&](const auto& member) { return std::ranges::count(loading, member.name) > 0; };
  if (std::ranges::all_of(arguments->members, changes_nothing))
    converter.drop("model_init_kwargs", "the model is read by lora-train's own loader");
}

}  // namespace

void convert_trl(Converter& converter) {
  convert_model(converter, "model_name_or_path", "model_revision");
  convert_trl_adapter(converter);
  convert_trl_base_precision(converter);
  convert_trl_model_arguments(converter);
  TrlData data;
  if (converter.find("datasets")) {
    add_trl_mixture(converter, data);
  } else if (converter.find("dataset_name")) {
    add_trl_named_dataset(converter, data);
  }
  map_chosen_answers(converter, data);
  convert_trl_text_column(converter, data);
  const auto keys = example_keys(data);
  convert_trl_loss(converter, keys);
  convert_trl_end_token(converter, keys);
  convert_trl_length(converter);
  if (converter.find("datasets")) {
    convert_held_out(converter, "test_split_size");
  } else if (converter.find("test_split_size")) {
    converter.drop("test_split_size", "applies only with datasets");
  }
  const bool has_eval_data = converter.is_set("val_set_size") || converter.is_set("eval_datasets");
  convert_trainer(converter, 10, has_eval_data);
}

}  // namespace lora_train
