#include "llamafactory_data.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/parse_yaml.h"
#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

/// dataset_dir as it is found from here, with its dataset_info.json.
struct DatasetInfo {
  fs::path folder;
  Value entries;
};

// The working directory, then the folders above the configuration: LLaMA-Factory is run from its own folder, above its examples.
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
  if (!columns) return otherwise;
  const Value* value = columns->find(name);
  return value && value->is_scalar() ? value->text : "";
}

std::string tag(const Value& entry, const std::string& name, const std::string& otherwise) {
  const Value* tags = entry.find("tags");
  const Value* value = tags ? tags->find(name) : nullptr;
  return value && value->is_scalar() ? value->text : otherwise;
}

std::string text_of(const Value& entry, const std::string& name) {
  const Value* value = entry.find(name);
  return value && value->is_scalar() ? value->text : "";
}

/// What speaks against reading an entry here; empty = nothing.
std::string refusal(const Value& entry) {
  const Value* ranking = entry.find("ranking");
  if (ranking && ranking->is_scalar() && parse_bool(ranking->text) == true) {
    return "has pairs of answers, and preference training is not built. Write the chosen answers as chats.";
  }
  for (const char* name : {"images", "videos", "audios"}) {
    if (!column(entry, name, "").empty()) return "has " + std::string(name) + ", which are not supported.";
  }
  if (!column(entry, "kto_tag", "").empty()) return "is for KTO, which is not built.";
  const bool is_hub = !text_of(entry, "hf_hub_url").empty();
  const std::string instead = ". Save it as a JSON file, and name that as file_name.";
  std::vector<std::string> ways = {"script_url", "cloud_file_name"};
  if (!is_hub)
    ways.insert(ways.end(), {"ms_hub_url", "om_hub_url", "subset"});  // hf_hub_url comes first, there as here
  ways.emplace_back("folder");
  for (const std::string& way : ways) {
    if (!text_of(entry, way).empty()) return "is loaded with " + way + instead;
  }
  const std::string split = text_of(entry, "split"), problem = split_problem(split);
  if (is_hub && !problem.empty()) return "takes the split " + split + ". " + problem;
  if (!is_hub && !split.empty() && split != "train") return "takes the split " + split + instead;
  if (const std::string spoken = tag(entry, "system_tag", "system"); spoken != "system" && !spoken.empty()) {
    return "calls a speaker " + spoken + " (system_tag). That speaker is system here; rename it in the rows.";
  }
  const std::string called = tag(entry, "function_tag", "function_call");
  if (text_of(entry, "formatting") == "openai" && called != "function_call" && !called.empty()) {
    return "calls a speaker " + called + " (function_tag). Write tool_calls of the assistant instead.";
  }
  return {};
}

/// Keys that are nearly LLaMA-Factory's, which passes over them.
std::vector<std::string> misspelt_keys(const Value& entry) {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> kKnown = {
      {"",
       {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name", "formatting", "ranking",
        "subset", "split", "folder", "num_samples", "columns", "tags"}},
      {"columns",
       {"prompt", "query", "response", "history", "messages", "system", "tools", "images", "videos", "audios", "chosen",
        "rejected", "kto_tag"}},
      {"tags",
       {"role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag", "function_tag", "system_tag"}}};
  std::vector<std::string> problems;
  for (const auto& [group, known] : kKnown) {
    const Value* map = group.empty() ? &entry : entry.find(group);
    if (!map || !map->is_map()) continue;
    for (const auto& member : map->members) {
      const std::string near = std::ranges::count(known, member.name) > 0 ? "" : nearest_name(member.name, known);
      if (!near.empty())
        problems.push_back("has the key " + (group.empty() ? "" : group + ".") + member.name +
                           ", which LLaMA-Factory does not know. Did you mean " + near + "?");
    }
  }
  return problems;
}

/// Speakers whose names are not known anyway.
void map_speakers(DataEntry& entry, const Value& info) {
  struct Speaker {
    const char *tag, *ours, *known;
  };
  constexpr Speaker kSpeakers[] = {{"user_tag", "user", "human user"},
                                   {"assistant_tag", "assistant", "gpt assistant"},
                                   {"observation_tag", "tool", "observation tool"},
                                   {"function_tag", "function_call", "function_call"}};
  for (const auto& [name, ours, known] : kSpeakers) {
    const std::string spoken = tag(info, name, "");
    if ((" " + std::string(known) + " ").find(" " + spoken + " ") == std::string::npos) entry.map(ours, spoken);
  }
}

void fill_layout(DataEntry& entry, const Value& info, bool is_pretraining) {
  const std::string formatting = text_of(info, "formatting").empty() ? "alpaca" : text_of(info, "formatting");
  if (is_pretraining) {
    entry.type = "text";
    entry.map("text", column(info, "prompt", "instruction"));
  } else if (formatting == "alpaca") {
    entry.type = "alpaca";
    entry.map("instruction", column(info, "prompt", "instruction"));
    entry.map("input", column(info, "query", "input"));
    entry.map("output", column(info, "response", "output"));
    entry.map("history", column(info, "history", ""));
  } else {
    const std::string messages = column(info, "messages", "conversations");
    const std::string role = tag(info, "role_tag", "from"), content = tag(info, "content_tag", "value");
    const bool has_our_roles =
        tag(info, "user_tag", "human") == "user" && tag(info, "assistant_tag", "gpt") == "assistant";
    entry.type = formatting == "openai" || has_our_roles ? "messages" : "sharegpt";
    entry.map(entry.type == "messages" ? "messages" : "conversations", messages);
    entry.map(entry.type == "messages" ? "role" : "from", role);
    entry.map(entry.type == "messages" ? "content" : "value", content);
    map_speakers(entry, info);
  }
  entry.map("system", column(info, "system", ""));
  entry.map("tools", column(info, "tools", ""));
  const bool is_openai = formatting == "openai";
  const std::string call = is_openai ? "tool_calls" : tag(info, "function_tag", "function_call");
  entry.has_tools =
      !column(info, "tools", "").empty() || (!is_pretraining && formatting != "alpaca" && has_string(entry.path, call));
}

/// Whether the messages of the rows have other keys than the tags say, and which tags would fit; empty = they fit.
std::string tag_problem(const DataEntry& entry, const Value& info) {
  const std::string role = tag(info, "role_tag", "from"), content = tag(info, "content_tag", "value");
  const auto keys = first_message_keys(entry.path, column(info, "messages", "conversations"));
  const auto has = [&](const std::string& name) { return std::ranges::count(keys, name) > 0; };
  if (keys.empty() || has(role) || !has("role") || !has("content")) return {};
  return "has messages with role and content, where LLaMA-Factory looks for " + role + " and " + content +
         ". Add to its entry in dataset_info.json: \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", "
         "\"user_tag\": \"user\", \"assistant_tag\": \"assistant\", \"system_tag\": \"system\"}.";
}

/// Columns that a row has and that are read here by their names, but not by LLaMA-Factory, for which dataset_info.json names none.
std::vector<std::string> unnamed_columns(const DataEntry& entry, const Value& info) {
  if (entry.type == "text") return {};
  const bool is_alpaca = entry.type == "alpaca";
  std::map<std::string, std::string> named = {
      {"system", column(info, "system", "")}};  // what is read here, and its name there
  if (is_alpaca) named.insert({{"input", column(info, "query", "input")}, {"history", column(info, "history", "")}});
  if (!is_alpaca) named["tools"] = column(info, "tools", "");
  std::vector<std::string> unnamed;
  for (const std::string& key : row_keys(entry.path)) {
    if (const auto found = named.find(key); found != named.end() && found->second != key) unnamed.push_back(key);
  }
  return unnamed;
}

std::optional<DatasetInfo> read_info(Converter& converter, const std::string& key) {
  const auto folder = find_folder(converter);
  const std::string name = converter.text_or("dataset_dir", "data");
  if (!folder) {
    converter.refuse(
        key, "needs " + name +
                 "/dataset_info.json, which is not here. Convert in the folder of LLaMA-Factory, or set dataset_dir.");
    return std::nullopt;
  }
  const std::string file = (*folder / "dataset_info.json").string();
  DatasetInfo info{*folder, parse_yaml(read_file(file), {file, 0})};
  if (!info.entries.is_map())
    throw ConfigError(file, "is no map of names. Expected LLaMA-Factory's dataset_info.json.");
  return info;
}

std::string share_of_file(const std::string& limit) {
  return "jq '.[:" + limit + "]' of a JSON array, head -n " + limit + " of JSON Lines";
}

// num_samples of dataset_info.json, which are drawn, not the first ones.
void refuse_num_samples(Converter& converter, const std::string& name, const std::string& path,
                        const std::string& limit) {
  if (limit.empty()) return;
  const auto rows = count_rows(path);
  if (rows && parse_number(limit) && static_cast<double>(*rows) == *parse_number(limit)) return;
  converter.refuse(name, "draws " + limit + " rows of a file" + (rows ? " of " + std::to_string(*rows) : "") +
                             ", which differ from those drawn here. Make a file of them (" + share_of_file(limit) +
                             ").");
}

/// The first rows that max_samples leaves of a file that has more, or that is not here.
std::optional<double> sample_limit(const Converter& converter, const DataEntry& entry) {
  const auto limit = converter.number("max_samples");
  const auto rows = entry.split.empty() && entry.subset.empty() ? count_rows(entry.path) : std::nullopt;
  return limit && rows && static_cast<double>(*rows) <= *limit ? std::nullopt : limit;
}

/// One dataset of dataset_info.json, and what speaks against it.
struct NamedDataset {
  DataEntry entry;
  std::vector<std::string> problems;
};

NamedDataset convert_dataset(Converter& converter, const std::string& key, const std::string& name,
                             const fs::path& folder, const Value& info) {
  NamedDataset dataset;
  DataEntry& entry = dataset.entry;
  if (const std::string problem = refusal(info); !problem.empty()) dataset.problems.push_back(name + " " + problem);
  const std::string hub = text_of(info, "hf_hub_url"), file = text_of(info, "file_name");
  entry.path = hub.empty() ? (folder / file).string() : hub;
  if (!hub.empty()) {
    const std::string split = text_of(info, "split");
    entry.split = split.empty() && key != "dataset" ? "train" : split;  // evaluation data say which
    entry.subset = text_of(info, "subset");
  }
  for (const std::string& problem : misspelt_keys(info)) dataset.problems.push_back(name + " " + problem);
  std::error_code code;
  if (hub.empty() && !file.empty() && !fs::exists(entry.path, code))
    converter.note(key, name + " is " + entry.path + ", which is not here, so nobody looked at its rows");
  const bool is_pretraining = converter.text("stage") == "pt",
             is_alpaca = text_of(info, "formatting").empty() || text_of(info, "formatting") == "alpaca";
  fill_layout(entry, info, is_pretraining);
  if (const std::string problem = is_pretraining || is_alpaca ? "" : tag_problem(entry, info); !problem.empty()) {
    dataset.problems.push_back(name + " " + problem);
  }
  if (const auto unnamed = unnamed_columns(entry, info); !unnamed.empty()) {
    const bool is_one = unnamed.size() == 1;
    dataset.problems.push_back(name + " has " + (is_one ? "a column " : "columns ") + join(unnamed) +
                               " that dataset_info.json does not name, so LLaMA-Factory does not read " +
                               (is_one ? "it" : "them") + "; here it would. Remove " + (is_one ? "it" : "them") +
                               " from the rows, or name " + (is_one ? "it" : "them") + " in columns.");
  }
  refuse_num_samples(converter, key + "[" + name + "].num_samples", entry.path, text_of(info, "num_samples"));
  entry.max_samples = sample_limit(converter, entry);
  return dataset;
}

}  // namespace

std::vector<DataEntry> convert_llamafactory_datasets(Converter& converter, const std::string& key) {
  const Value* names = converter.find(key);
  if (!names) return {};
  std::vector<DataEntry> entries;
  if (converter.text("dataset_dir") == "ONLINE") {
    for (const auto& name : names_in(*names)) {
      entries.push_back({name, "", {}});
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
      const std::string near = nearest_name(name, known);
      problems.push_back(name + " is not in " + (info->folder / "dataset_info.json").string() +
                         (near.empty() ? "." : ". Did you mean " + near + "?"));
      continue;
    }
    NamedDataset dataset = convert_dataset(converter, key, name, info->folder, *found);
    problems.insert(problems.end(), dataset.problems.begin(), dataset.problems.end());
    entries.push_back(std::move(dataset.entry));
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
      converter.drop("interleave_probs", "says nothing with mix_strategy: concat");
    return;
  }
  if (entries.size() < 2) {
    const bool is_refused = converter.is_refused("dataset");
    for (const char* key : {"mix_strategy", "interleave_probs"}) {
      if (converter.find(key))
        converter.drop(key, is_refused ? "belongs to dataset, which is refused" : "says nothing of one dataset");
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
  std::vector<double> rows;
  for (const DataEntry& entry : entries) {
    const auto count = count_rows(entry.path);
    if (!count) {
      return converter.refuse("mix_strategy", "gives each dataset a share that depends on its rows, and " + entry.path +
                                                  " cannot be counted here. Say `weight` in `datasets`.");
    }
    rows.push_back(std::min(static_cast<double>(*count), entry.max_samples.value_or(static_cast<double>(*count))));
  }
  std::vector<double> lengths;  // of an epoch that ends when this dataset is used up
  for (std::size_t i = 0; i < entries.size(); ++i) lengths.push_back(rows[i] / probabilities[i]);
  const bool is_under = strategy == "interleave_under";
  const double length = is_under ? *std::ranges::min_element(lengths) : *std::ranges::max_element(lengths);
  constexpr double kDigits = 1e4;
  for (std::size_t i = 0; i < entries.size(); ++i)
    entries[i].weight = std::round(length / lengths[i] * kDigits) / kDigits;
  converter.share("mix_strategy", "datasets");
  if (converter.find("interleave_probs")) converter.share("interleave_probs", "datasets");
  converter.note("mix_strategy",
                 "the shares are LLaMA-Factory's as `weight` of the datasets; which rows are drawn, and in "
                 "which order, differs");
}

}  // namespace lora_train
