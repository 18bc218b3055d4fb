#include <algorithm>
#include <cmath>
#include <utility>

#include "converter.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "lora_train/data/first_examples.h"
#include "tool_keys.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

/// dataset_dir as found from here, with its dataset_info.json.
struct DatasetInfo {
  fs::path folder;
  Value entries;
};

// The working directory, then the folders above the configuration: LLaMA-Factory is run from its own folder, above its
// examples.
std::optional<fs::path> find_folder(const Converter& converter) {
  const std::string name = converter.text_or("dataset_dir", "data");
  std::error_code code;
  if (fs::is_regular_file(fs::path(name) / "dataset_info.json", code)) return fs::path(name);
  if (fs::path(name).is_absolute()) return std::nullopt;
  const fs::path file = fs::absolute(converter.file(), code);
  for (fs::path folder = file.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::is_regular_file(folder / name / "dataset_info.json", code)) return folder / name;
  }
  return std::nullopt;
}

// A column that the entry may name; LLaMA-Factory forgets its defaults as soon as `columns` is there.
std::string column(const Value& entry, const std::string& name, const std::string& otherwise) {
  const Value* columns = entry.find("columns");
  return columns ? columns->text_of(name) : otherwise;
}

std::string tag(const Value& entry, const std::string& name, const std::string& otherwise) {
  const Value* tags = entry.find("tags");
  return tags ? tags->text_of(name, otherwise) : otherwise;
}

/// Why an entry cannot be read here; empty = it can.
std::string refusal(const Value& entry) {
  if (parse_bool(entry.text_of("ranking")) == true) {
    return "has pairs of answers, and preference training is not supported. Write the chosen answers as chats.";
  }
  for (const char* name : {"images", "videos", "audios"}) {
    if (!column(entry, name, "").empty()) return fmt::format("has {}, which are not supported.", name);
  }
  if (!column(entry, "kto_tag", "").empty()) return "is for KTO, which is not supported.";
  const bool is_hub = !entry.text_of("hf_hub_url").empty();
  const std::string instead = ". Save it as a JSON file, and name that as file_name.";
  std::vector<std::string> ways = {"script_url", "cloud_file_name"};
  if (!is_hub)
    ways.insert(ways.end(), {"ms_hub_url", "om_hub_url", "subset"});  // hf_hub_url comes first, there as here
  ways.emplace_back("folder");
  for (const std::string& way : ways) {
    if (!entry.text_of(way).empty()) return fmt::format("is loaded with {}{}", way, instead);
  }
  const std::string split = entry.text_of("split"), problem = split_problem(split);
  if (is_hub && !problem.empty()) return fmt::format("takes the split {}. {}", split, problem);
  if (!is_hub && !split.empty() && split != "train") return fmt::format("takes the split {}{}", split, instead);
  if (const std::string spoken = tag(entry, "system_tag", "system"); spoken != "system" && !spoken.empty()) {
    return "calls a speaker " + spoken + " (system_tag). That speaker is system here; rename it in the examples.";
  }
  const std::string called = tag(entry, "function_tag", "function_call");
  if (entry.text_of("formatting") == "openai" && called != "function_call" && !called.empty()) {
    return fmt::format("calls a speaker {} (function_tag). Write tool_calls of the assistant instead.", called);
  }
  return {};
}

std::string layout_of(const Value& entry) {
  const std::string formatting = entry.text_of("formatting");
  return formatting.empty() ? "alpaca" : formatting;
}

void fill_layout(DataEntry& entry, const Value& info, bool is_pretraining) {
  const std::string formatting = layout_of(info);
  const std::vector<std::string> keys = is_pretraining ? std::vector<std::string>() : data::example_keys(entry.path);
  // A column of our name that LLaMA-Factory does not read, since dataset_info.json names none, stays unread here.
  const auto map_or_leave = [&](const std::string& ours, const std::string& theirs) {
    entry.map(ours, theirs);
    if (theirs.empty() && std::ranges::count(keys, ours) > 0) entry.leave_unread(ours);
  };
  if (is_pretraining) {
    entry.type = DatasetType::kText;
    entry.map("text", column(info, "prompt", "instruction"));
  } else if (formatting == "alpaca") {
    entry.type = DatasetType::kAlpaca;
    entry.map("instruction", column(info, "prompt", "instruction"));
    map_or_leave("input", column(info, "query", "input"));
    entry.map("output", column(info, "response", "output"));
    map_or_leave("history", column(info, "history", ""));
  } else {
    const std::string messages = column(info, "messages", "conversations");
    const std::string role = tag(info, "role_tag", "from"), content = tag(info, "content_tag", "value");
    const bool has_our_roles =
        tag(info, "user_tag", "human") == "user" && tag(info, "assistant_tag", "gpt") == "assistant";
    entry.type = formatting == "openai" || has_our_roles ? DatasetType::kMessages : DatasetType::kSharegpt;
    entry.map(entry.type == DatasetType::kMessages ? "messages" : "conversations", messages);
    entry.map(entry.type == DatasetType::kMessages ? "role" : "from", role);
    entry.map(entry.type == DatasetType::kMessages ? "content" : "value", content);
    for (const auto& [name, ours] : {std::pair{"user_tag", "user"},
                                     {"assistant_tag", "assistant"},
                                     {"observation_tag", "tool"},
                                     {"function_tag", "function_call"}}) {
      entry.map_role(ours, tag(info, name, ""));
    }
  }
  map_or_leave("system", column(info, "system", ""));
  map_or_leave("tools", column(info, "tools", ""));
  const bool is_openai = formatting == "openai";
  const std::string call = is_openai ? "tool_calls" : tag(info, "function_tag", "function_call");
  entry.has_tools = !column(info, "tools", "").empty() ||
                    (!is_pretraining && formatting != "alpaca" && data::has_string(entry.path, call));
}

std::optional<DatasetInfo> read_info(Converter& converter, const std::string& key) {
  const auto folder = find_folder(converter);
  const std::string name = converter.text_or("dataset_dir", "data");
  if (!folder) {
    converter.refuse(
        key, "needs " + name +
                 "/dataset_info.json, which was not found. Run convert in LLaMA-Factory's folder, or set dataset_dir.");
    return std::nullopt;
  }
  const std::string file = (*folder / "dataset_info.json").string();
  DatasetInfo info{*folder, parse_yaml(read_file(file), {file, 0})};
  if (!info.entries.is_map())
    throw ConfigError(file, "is not a map of names. Expected LLaMA-Factory's dataset_info.json.");
  return info;
}

/// The first examples that max_samples leaves of a file that has more, or that is not here.
std::optional<std::int64_t> sample_limit(const Converter& converter, const DataEntry& entry) {
  const auto limit = parse_integer(converter.text("max_samples"));
  const auto examples = entry.split.empty() && entry.subset.empty() ? data::count_examples(entry.path) : std::nullopt;
  return limit && examples && std::cmp_less_equal(*examples, *limit) ? std::nullopt : limit;
}

/// One dataset of dataset_info.json.
DataEntry convert_dataset(Converter& converter, const std::string& key, const std::string& name, const fs::path& folder,
                          const Value& info) {
  DataEntry entry;
  const std::string hub = info.text_of("hf_hub_url"), file = info.text_of("file_name");
  entry.path = hub.empty() ? (folder / file).string() : hub;
  if (!hub.empty()) {
    const std::string split = info.text_of("split");
    entry.split = split.empty() && key != "dataset" ? "train" : split;  // evaluation data say which
    entry.subset = info.text_of("subset");
  }
  std::error_code code;
  if (hub.empty() && !file.empty() && !fs::exists(entry.path, code))
    converter.note(key, name + " is " + entry.path + ", which was not found, so its examples were not checked");
  fill_layout(entry, info, converter.text("stage") == "pt");
  if (const std::string drawn = info.text_of("num_samples"); !drawn.empty()) {
    converter.refuse(
        fmt::format("{}[{}].num_samples", key, name),
        fmt::format("draws {0} examples, and lora-train would draw others. Put {0} examples into a file of their own "
                    "(jq '.[:{0}]' for a JSON array, head -n {0} for JSON Lines).",
                    drawn));
  }
  entry.max_samples = sample_limit(converter, entry);
  return entry;
}

bool has_history(const DataEntry& entry) {
  const auto found = entry.field_map.find("history");
  return entry.type != DatasetType::kAlpaca || (found != entry.field_map.end() && !found->second.empty());
}

void convert_thinking(Converter& converter, const std::vector<DataEntry>& train) {
  const bool is_null = converter.has("enable_thinking") && !converter.find("enable_thinking");
  if (is_null || parse_bool(converter.text("enable_thinking")) == false) {
    converter.refuse(
        "enable_thinking",
        "LLaMA-Factory puts the empty <think> block into the prompt; qwen3's template trains it as part of the answer. "
        "Use template: qwen3_nothink, or a .jinja file.");
  }
  if (std::ranges::any_of(train, has_history) && !converter.is_true("mask_history")) {
    converter.note(
        "template",
        "in a chat of several turns, only the last answer has a <think> block here, as in Qwen3's own template, and "
        "the reasoning of earlier ones is left out; LLaMA-Factory writes and trains a block in each answer, unless "
        "mask_history is true");
  }
}

void note_builtin(Converter& converter, const std::string& name) {
  const bool is_gemma = name.starts_with("gemma"), trims = is_gemma || name == "llama3";
  if (name != "llama3") converter.note("template", "the line feed after the end token is not trained here");
  if (trims)
    converter.note("template", "white space at both ends of a message is left out here; LLaMA-Factory keeps it");
  if (name == "gemma2") converter.note("template", "LLaMA-Factory also trains <eos> at the end of an example");
}

}  // namespace

std::vector<DataEntry> convert_llamafactory_datasets(Converter& converter, const std::string& key) {
  const Value* names = converter.find(key);
  if (!names) return {};
  std::vector<DataEntry> entries;
  if (converter.text("dataset_dir") == "ONLINE") {
    for (const auto& name : names_in(*names)) {
      entries.emplace_back(name);
      entries.back().max_samples = sample_limit(converter, entries.back());
    }
    return entries;
  }
  const auto info = read_info(converter, key);
  if (!info) return {};
  std::vector<std::string> known, problems;
  for (const auto& [name, value] : info->entries.members) known.push_back(name);
  for (const auto& name : names_in(*names)) {
    const Value* found = info->entries.find(name);
    if (!found) {
      problems.push_back(fmt::format("{} is not in {}.{}", name, (info->folder / "dataset_info.json").string(),
                                     did_you_mean(nearest_names(name, known))));
      continue;
    }
    if (const std::string problem = refusal(*found); !problem.empty()) problems.push_back(name + " " + problem);
    entries.push_back(convert_dataset(converter, key, name, info->folder, *found));
  }
  if (problems.empty()) return entries;
  converter.refuse(key, join(problems, " "));
  return {};
}

void weigh_interleaved_datasets(Converter& converter, std::vector<DataEntry>& entries) {
  if (!converter.find("dataset")) return;
  const std::string strategy = converter.text("mix_strategy");
  if (strategy != "interleave_under" && strategy != "interleave_over") {
    if (converter.find("interleave_probs") && (strategy.empty() || strategy == "concat"))
      converter.drop("interleave_probs", "mix_strategy: concat ignores it");
    return;
  }
  if (entries.size() < 2) {
    const bool is_refused = converter.is_refused("dataset");
    for (const char* key : {"mix_strategy", "interleave_probs"}) {
      if (converter.find(key))
        converter.drop(key, is_refused ? "belongs to dataset, which is refused" : "applies only to several datasets");
    }
    return;
  }
  std::vector<double> probabilities(entries.size(), 1.0 / static_cast<double>(entries.size()));
  if (const Value* given = converter.find("interleave_probs")) {
    probabilities.clear();
    for (const std::string& word : names_in(*given)) probabilities.push_back(parse_number(word).value_or(0));
    const bool are_wrong = std::ranges::any_of(probabilities, [](double each) { return each <= 0; });
    if (are_wrong || probabilities.size() != entries.size())
      return converter.refuse("interleave_probs", "expected a share above 0 for each dataset.");
  }
  std::vector<double> examples;
  for (const DataEntry& entry : entries) {
    const auto count = data::count_examples(entry.path);
    if (!count) {
      return converter.refuse("mix_strategy",
                              "gives each dataset a share that depends on its number of examples, but " + entry.path +
                                  " cannot be counted here. Use `weight` in `datasets`.");
    }
    const auto all = static_cast<std::int64_t>(*count);
    examples.push_back(static_cast<double>(std::min(all, entry.max_samples.value_or(all))));
  }
  std::vector<double> lengths;  // of an epoch that ends when this dataset is used up
  for (std::size_t i = 0; i < entries.size(); ++i) lengths.push_back(examples[i] / probabilities[i]);
  const bool is_under = strategy == "interleave_under";
  const double length = is_under ? *std::ranges::min_element(lengths) : *std::ranges::max_element(lengths);
  constexpr double kDigits = 1e4;
  for (std::size_t i = 0; i < entries.size(); ++i)
    entries[i].weight = std::round(length / lengths[i] * kDigits) / kDigits;
  converter.share("mix_strategy", "datasets");
  if (converter.find("interleave_probs")) converter.share("interleave_probs", "datasets");
  converter.note(
      "mix_strategy",
      "`weight` of the datasets gives LLaMA-Factory's shares; which examples are drawn, and in which order, differs");
}

void convert_llamafactory_template(Converter& converter, const std::vector<DataEntry>& train) {
  const std::string name = converter.text("template");
  if (name.empty()) return;
  std::string ours = converter.template_for(name);
  const bool has_tools = std::ranges::any_of(train, &DataEntry::has_tools);
  if (ours.empty()) {
    const auto& theirs = tool_of(ForeignTool::kLlamaFactory).templates;
    return converter.refuse(
        "template", name +
                        (theirs.contains(name) ? " is not supported."
                                               : " is not a LLaMA-Factory template." +
                                                     did_you_mean(nearest_names(name, names_of_keys(theirs)))) +
                        " Use the model's own (chat_template: tokenizer), or write a .jinja file and name it as "
                        "chat_template.");
  }
  const Value* system = converter.find("default_system");
  if (ours == "qwen2.5" && system && system->text.empty() && !has_tools) {
    ours = "chatml";  // the same without a system prompt of its own
    converter.share("default_system", "chat_template");
  }
  converter.set("template", "chat_template", has_tools ? "tokenizer" : ours);
  if (has_tools && ours != "tokenizer") {
    converter.note("template",
                   "examples have tools or tool calls, which built-in templates do not write: the model's own is used");
  } else if (ours == "tokenizer") {
    converter.note("template", "the model's own template is used, which may write another system prompt");
  } else {
    note_builtin(converter, name);
    if (ours == "qwen3") convert_thinking(converter, train);
  }
}

}  // namespace lora_train
