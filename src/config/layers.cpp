#include "lora_train/config/layers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/config/value/parse_yaml.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

bool is_variable_name(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }) &&
         std::isdigit(static_cast<unsigned char>(name[0])) == 0;
}

// The text for what stands between ${ and }, or a message.
std::string replace_one(const std::string& inside, const Environment& environment, std::string& problem) {
  const std::size_t split = inside.find(":-");
  const std::string name = inside.substr(0, split);
  if (!is_variable_name(name)) {
    problem = "\"${" + inside + "}\" is not a variable. Expected ${NAME} or ${NAME:-default}; $${ stands for ${.";
    return {};
  }
  if (inside.find("${") != std::string::npos) {
    problem = "\"${" + inside + "}\" has a variable in its default, which is not expanded. Give a plain default.";
    return {};
  }
  const auto value = environment(name);
  if (split != std::string::npos) return value && !value->empty() ? *value : inside.substr(split + 2);
  if (!value) problem = "the variable " + name + " is not set. Export it, or give a default: ${" + name + ":-default}.";
  return value.value_or("");
}

std::string replace_in_text(const std::string& text, const Environment& environment, std::string& problem) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t open = text.find("${"); open != std::string::npos; open = text.find("${", at)) {
    if (open > at && text[open - 1] == '$') {
      out += text.substr(at, open - 1 - at) + "${";
      at = open + 2;
      continue;
    }
    const std::size_t close = text.find('}', open);
    if (close == std::string::npos) {
      problem = "\"" + text.substr(open) + "\" has no closing brace. Expected ${NAME} or ${NAME:-default}.";
      return text;
    }
    out += text.substr(at, open - at) + replace_one(text.substr(open + 2, close - open - 2), environment, problem);
    at = close + 1;
  }
  return out + text.substr(at);
}

void set_places(Value& value, const Place& place) {
  value.place = place;
  for (auto& item : value.items) set_places(item, place);
  for (auto& [name, member] : value.members) set_places(member, place);
}

/// $${ stands for ${; nothing else is special.
void unescape(Value& value) {
  for (std::size_t at = value.text.find("$${"); at != std::string::npos; at = value.text.find("$${", at + 2)) {
    value.text.erase(at, 1);
  }
  for (auto& item : value.items) unescape(item);
  for (auto& [name, member] : value.members) unescape(member);
}

class Reader {
 public:
  Reader(const ProfileSources& sources, const Environment& environment, Findings& findings)
      : sources_(sources), environment_(environment), findings_(findings) {}

  void read(const fs::path& file) {
    if (++num_read_ > kMaxFiles) {
      if (num_read_ == kMaxFiles + 1) findings_.mistake({file.string(), 0}, "extends", too_many_files());
      return;
    }
    Value map;
    try {
      map = parse_yaml(read_file(file), {file.string(), 0});
    } catch (const Error& error) {
      findings_.mistake(parse_place(error.where()), "", error.message());
      return;
    }
    if (!map.is_map() && !map.is_null()) {
      findings_.mistake({file.string(), map.place.line}, "", "a profile is a map of keys to values (`model: ...`).");
      return;
    }
    take_extends(file, map);
    for (auto& [key, value] : map.members) {
      if (sources_.are_written_by_runs) {
        unescape(value);
      } else {
        replace_variables(value, key, environment_, findings_);
      }
    }
    layers.push_back(std::move(map));
  }

  /// The file that `name` stands for: itself, beside `folder`, or a shipped profile.
  std::optional<fs::path> locate(const std::string& name, const fs::path& folder) const {
    std::error_code code;  // a name that is too long, a folder that may not be looked into: not there
    const fs::path direct = fs::path(name).is_absolute() ? fs::path(name) : folder / name;
    if (fs::is_regular_file(direct, code)) return direct;
    if (name.find('/') != std::string::npos) return std::nullopt;
    return find_shipped(name, sources_.shipped);
  }

  std::string not_found(const std::string& name, const fs::path& folder) const {
    std::error_code code;
    const fs::file_status status = fs::status(folder / name, code);
    if (fs::is_directory(status)) return "is a folder. Expected a profile file.";
    if (fs::exists(status)) return "is a pipe or a device. Expected a profile file.";
    if (!fs::status_known(status)) return code.message() + ".";
    std::vector<std::string> names;
    for (const auto& shipped : sources_.shipped) {
      for (const auto& profile : shipped_profiles(shipped)) names.push_back(profile.name);
    }
    const std::string near = nearest_name(name, names);
    return "no such file" +
           std::string(names.empty() ? "." : ", and no shipped profile of that name (" + join(names) + ").") +
           (near.empty() ? "" : " Did you mean \"" + near + "\"?");
  }

  std::vector<Value> layers;

 private:
  // Each base of a file may name two: what 30 files extend can be a thousand million.
  static constexpr int kMaxFiles = 200;
  static std::string too_many_files() {
    return "more than " + std::to_string(kMaxFiles) + " files extend one another. Is one of them extended many times?";
  }

  void take_extends(const fs::path& file, Value& map) {
    const Value* extends = map.find("extends");
    if (!extends) return;
    if (sources_.are_written_by_runs) {
      findings_.mistake(extends->place, "extends", "the profile of a run is complete and extends no other file.");
    } else {
      read_bases(file, *extends);
    }
    std::erase_if(map.members, [](const auto& member) { return member.name == "extends"; });
  }

  void read_bases(const fs::path& file, const Value& extends) {
    std::vector<Value> names = extends.is_list() ? extends.items : std::vector<Value>{extends};
    for (Value& name : names) {
      replace_variables(name, "extends", environment_, findings_);
      if (!name.is_scalar() || name.text.empty()) {
        findings_.mistake(name.place, "extends", "expected a file name.");
        continue;
      }
      read_base(file, name);
    }
  }

  void read_base(const fs::path& file, const Value& name) {
    const auto found = locate(name.text, file.parent_path());
    if (!found) {
      findings_.mistake(name.place, "extends", "\"" + name.text + "\": " + not_found(name.text, file.parent_path()));
      return;
    }
    const fs::path real = fs::weakly_canonical(*found);
    if (real.extension() != ".yaml" && real.extension() != ".yml" && real.extension() != ".json") {
      // An error quotes lines, and a profile of others may name any file of this user.
      findings_.mistake(name.place, "extends",
                        "\"" + name.text + "\" is no file that ends in .yaml, .yml or .json. Expected a profile file.");
      return;
    }
    chain_.push_back(fs::weakly_canonical(file));
    const auto again = std::find(chain_.begin(), chain_.end(), real);
    if (again == chain_.end()) {
      read(*found);
    } else {
      std::vector<std::string> circle;
      for (auto at = again; at != chain_.end(); ++at) circle.push_back(at->filename().string());
      circle.push_back(again->filename().string());
      findings_.mistake(name.place, "extends", "forms a cycle: " + join(circle, " -> ") + ".");
    }
    chain_.pop_back();
  }

  const ProfileSources& sources_;
  const Environment& environment_;
  Findings& findings_;
  std::vector<fs::path> chain_;
  int num_read_ = 0;
};

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

void replace_variables(Value& value, const std::string& key, const Environment& environment, Findings& findings) {
  if (value.is_scalar() && value.text.find("${") != std::string::npos) {
    std::string problem;
    const std::string replaced = replace_in_text(value.text, environment, problem);
    if (problem.empty()) {
      value.text = replaced;
    } else {
      findings.mistake(value.place, key, problem);
    }
  }
  for (auto& item : value.items) replace_variables(item, key, environment, findings);
  for (auto& [name, member] : value.members) replace_variables(member, key, environment, findings);
}

Value override_value(const Override& setting, const Environment& environment, Findings& findings) {
  const Place place{setting.where, 0};
  Value value = text_value(setting.value);
  if (setting.literal) {
    value.place = place;
    return value;
  }
  const std::size_t first = setting.value.find_first_not_of(' ');
  const bool is_yaml =
      first != std::string::npos && std::string("[{\"'").find(setting.value[first]) != std::string::npos;
  if (setting.value == "null" || setting.value == "~") {
    value = null_value();
  } else if (is_yaml) {
    try {
      value = parse_yaml(setting.value, place);
    } catch (const ConfigError& error) {
      findings.mistake(place, setting.path, error.message());
    }
  }
  set_places(value, place);
  replace_variables(value, setting.path, environment, findings);
  return value;
}

std::vector<Value> read_layers(const ProfileSources& sources, const Environment& environment, Findings& findings) {
  Reader reader(sources, environment, findings);
  for (const auto& name : sources.profiles) {
    if (const auto file = reader.locate(name, {})) {
      reader.read(*file);
    } else {
      findings.mistake({name, 0}, "", reader.not_found(name, {}));
    }
  }
  return std::move(reader.layers);
}

std::optional<fs::path> find_shipped(const std::string& name, const std::vector<fs::path>& folders) {
  std::string wanted = lower_case(name), ending = ".yaml";
  for (const char* known : {".yaml", ".json"}) {
    if (!wanted.ends_with(known)) continue;
    ending = known;
    wanted.resize(wanted.size() - ending.size());
  }
  if (wanted == "h100-bf16") wanted = "h100";
  for (const auto& folder : folders) {
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(folder, code)) {
      if (lower_case(entry.path().filename().string()) == wanted + ending && entry.is_regular_file(code))
        return entry.path();
    }
  }
  if (ending == ".json") return find_shipped(wanted + ".yaml", folders);
  return std::nullopt;
}

}  // namespace lora_train
