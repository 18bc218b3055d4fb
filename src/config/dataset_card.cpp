#include "lora_train/config/dataset_card.h"

#include <sstream>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

/// `configs:` and the lines below it, each with its own line number. The rest of a card may have any size.
std::string configs_section(const std::string& readme) {
  std::istringstream lines(readme);
  std::string line, section;
  bool is_inside = false;
  if (!std::getline(lines, line) || !line.starts_with("---")) return {};
  for (section = "\n"; std::getline(lines, line) && !line.starts_with("---");) {
    const bool is_key = !line.empty() && line[0] != ' ' && line[0] != '-' && line[0] != '#' && line[0] != '\r';
    if (is_key) is_inside = line.starts_with("configs:");
    section += (is_inside ? line : "") + "\n";
  }
  return section;
}

[[noreturn]] void refuse_card(const Value& value, const std::string& expected) {
  throw DataError(value.place.text(), "configs in the dataset's front matter: expected " + expected +
                                          ". Name the files of the dataset instead (path: FOLDER/train*)");
}

std::string text_member(const Value& map, const std::string& name, const std::string& otherwise) {
  const Value* value = map.find(name);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_scalar()) refuse_card(*value, "text as " + name);
  return value->text;
}

std::vector<std::string> patterns_of(const Value& value) {
  std::vector<std::string> patterns;
  for (const Value& item : items_of(value)) {
    if (!item.is_scalar()) refuse_card(item, "a file name or a list of them");
    patterns.push_back(item.text);
  }
  return patterns;
}

/// A name or a list of names (split train), a map of split to names, or a list of {split, path}.
std::vector<CardSplit> splits_of(const Value& files) {
  std::vector<CardSplit> splits;
  if (files.is_map()) {
    for (const auto& [split, names] : files.members) splits.push_back({split, patterns_of(names)});
  } else if (files.is_list() && !files.items.empty() && files.items[0].is_map()) {
    for (const Value& item : files.items) {
      const Value* path = item.find("path");
      if (path == nullptr) refuse_card(item, "{split, path}");
      splits.push_back({text_member(item, "split", "train"), patterns_of(*path)});
    }
  } else if (!files.is_null()) {
    splits.push_back({"train", patterns_of(files)});
  }
  return splits;
}

CardSubset subset_of(const Value& value) {
  if (!value.is_map()) refuse_card(value, "a list of maps with config_name and data_files");
  CardSubset subset;
  subset.name = text_member(value, "config_name", "default");
  subset.is_default = parse_bool(text_member(value, "default", "false")).value_or(false);
  subset.data_dir = text_member(value, "data_dir", "");
  if (const Value* files = value.find("data_files")) subset.splits = splits_of(*files);
  return subset;
}

}  // namespace

std::vector<CardSubset> read_dataset_card(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "README.md";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::vector<CardSubset> subsets;
  try {
    const Value card = parse_yaml(configs_section(read_file(file)), {file.string(), 0});
    const Value* configs = card.find("configs");
    if (configs == nullptr || configs->is_null()) return {};
    if (!configs->is_list()) refuse_card(*configs, "a list");
    for (const Value& item : configs->items) subsets.push_back(subset_of(item));
  } catch (const ConfigError& problem) {
    throw DataError(problem.where(), problem.message());
  }
  return subsets;
}

}  // namespace lora_train
