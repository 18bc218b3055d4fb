#include "source_data.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRowBytes = 1 << 20, kMostRows = 1000;

std::string extension_of(const fs::path& file) { return lower_case(file.extension().string()); }

bool is_json(const fs::path& file) {
  const std::string extension = extension_of(file);
  return extension == ".jsonl" || extension == ".json" || extension == ".ndjson";
}

bool is_row_file(const fs::path& file) {
  const std::string extension = extension_of(file);
  return is_json(file) || extension == ".csv" || extension == ".parquet" || extension == ".arrow";
}

// The first object of a file of JSON rows, as text; empty if there is none.
std::string first_object(std::istream& file) {
  std::string text;
  int depth = 0;
  bool in_string = false;
  for (char c; text.size() < kMaxRowBytes && file.get(c);) {
    if (depth == 0 && c != '{') continue;
    text += c;
    if (in_string) {
      if (c == '\\' && file.get(c)) {
        text += c;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    in_string = c == '"';
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth == 0) return text;
  }
  return {};
}

// Null if there is none, or it cannot be read: the run will say what is wrong with it.
Value first_row(const fs::path& file) {
  std::error_code code;
  if (!fs::is_regular_file(file, code) || !is_json(file)) return null_value();
  std::ifstream stream(file);
  try {
    return parse_yaml(first_object(stream), {file.string(), 0});
  } catch (const Error&) {
    return null_value();
  }
}

std::vector<std::string> names_of_members(const Value& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map.members) names.push_back(name);
  return names;
}

}  // namespace

void DataEntry::map(const std::string& ours, const std::string& theirs) {
  if (theirs.empty() || theirs == ours) return;
  std::erase_if(field_map, [&](const auto& pair) { return pair.first == ours; });
  field_map.emplace_back(ours, theirs);
}

Value DataEntry::value() const {
  Value value;
  value.kind = Value::Kind::kMap;
  value.members.push_back({"path", text_value(path)});
  if (!split.empty()) value.members.push_back({"split", text_value(split)});
  if (!subset.empty()) value.members.push_back({"subset", text_value(subset)});
  if (!type.empty()) value.members.push_back({"type", text_value(type)});
  if (weight && *weight != 1) value.members.push_back({"weight", number_value(*weight)});
  if (max_samples) value.members.push_back({"max_samples", number_value(*max_samples)});
  if (!field_map.empty()) {
    Value map;
    map.kind = Value::Kind::kMap;
    for (const auto& [ours, theirs] : field_map) {
      map.members.push_back({ours, theirs.empty() ? null_value() : text_value(theirs)});
    }
    value.members.push_back({"field_map", std::move(map)});
  }
  return value;
}

Value to_value(const std::vector<DataEntry>& entries) {
  Value list = list_value({});
  for (const auto& entry : entries) list.items.push_back(entry.value());
  return list;
}

bool is_hub_dataset(const std::string& path) {
  std::error_code code;
  const auto slash = path.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < path.size() && path.find('/', slash + 1) == path.npos &&
         path[0] != '.' && path[0] != '~' && path.find_first_of("*?[ ") == path.npos && !is_row_file(path) &&
         !fs::exists(path, code);
}

std::string split_problem(const std::string& split) {
  if (split.find_first_of("[+%") == std::string::npos) return {};
  return "Parts and sums of splits are not built. Name one split; val_set_size holds out a share of it.";
}

std::optional<std::string> split_path(const fs::path& folder, const std::string& split) {
  std::error_code code;
  for (const fs::path& place : {folder, folder / "data"}) {
    if (fs::is_directory(place / split, code)) return (place / split).string();
    std::set<std::string> found;  // sorted: the order of a folder is the file system's
    for (const auto& entry : fs::directory_iterator(place, code)) {
      const std::string stem = entry.path().stem().string();
      if (is_row_file(entry.path()) && (stem == split || stem.starts_with(split + "-")))
        found.insert(entry.path().string());
    }
    if (found.size() == 1) return *found.begin();
    if (found.size() > 1) return (place / (split + "-*" + fs::path(*found.begin()).extension().string())).string();
  }
  return std::nullopt;
}

std::vector<std::string> row_keys(const fs::path& file) {
  std::error_code code;
  std::vector<std::string> keys;
  if (!fs::is_regular_file(file, code) || !is_json(file)) return keys;
  std::ifstream stream(file);
  for (std::size_t i = 0; i < kMostRows; ++i) {
    const std::string row = first_object(stream);
    if (row.empty()) break;
    try {
      for (const auto& key : names_of_members(parse_yaml(row, {file.string(), 0}))) {
        if (std::ranges::count(keys, key) == 0) keys.push_back(key);
      }
    } catch (const Error&) {  // the run will say what is wrong with it
    }
  }
  return keys;
}

std::vector<std::string> first_row_keys(const fs::path& file) { return names_of_members(first_row(file)); }

std::vector<std::string> first_message_keys(const fs::path& file, const std::string& column) {
  const Value row = first_row(file);
  const Value* messages = row.is_map() ? row.find(column) : nullptr;
  return messages && !messages->items.empty() ? names_of_members(messages->items.front()) : std::vector<std::string>{};
}

bool has_string(const fs::path& file, const std::string& text) {
  std::error_code code;
  if (!fs::is_regular_file(file, code) || !is_json(file)) return false;
  const std::string quoted = '"' + text + '"';
  std::ifstream stream(file);
  std::string part(1 << 16, '\0'), seen;
  while (stream.read(part.data(), static_cast<std::streamsize>(part.size())) || stream.gcount() > 0) {
    seen.append(part, 0, static_cast<std::size_t>(stream.gcount()));
    if (seen.find(quoted) != seen.npos) return true;
    seen.erase(0, seen.size() - std::min(seen.size(), quoted.size()));
  }
  return false;
}

std::optional<std::size_t> count_rows(const fs::path& file) {
  std::error_code code;
  const std::string extension = extension_of(file);
  if (!fs::is_regular_file(file, code)) return std::nullopt;
  std::ifstream stream(file);
  std::size_t count = 0;
  if (extension == ".jsonl" || extension == ".ndjson") {
    for (std::string line; std::getline(stream, line);) count += line.find_first_not_of(" \t\r") != std::string::npos;
    return count;
  }
  if (extension != ".json") return std::nullopt;
  while (!first_object(stream).empty()) ++count;
  return count;
}

std::vector<std::string> names_in(const Value& value) {
  if (value.is_list()) {
    std::vector<std::string> names;
    for (const auto& item : value.items) names.push_back(item.text);
    return names;
  }
  std::vector<std::string> names = {""};
  for (const char c : value.text) {
    if (c == ',') {
      names.emplace_back();
    } else if (c != ' ') {
      names.back() += c;
    }
  }
  return names;
}

bool has_only(const Value& map, const std::vector<std::string>& known) {
  return std::ranges::all_of(map.members,
                             [&](const auto& member) { return std::ranges::count(known, member.name) > 0; });
}

}  // namespace lora_train
