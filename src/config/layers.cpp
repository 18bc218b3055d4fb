#include "lora_train/config/layers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

bool is_variable_name(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }) &&
         std::isdigit(static_cast<unsigned char>(name[0])) == 0;
}

/// The text for what is between ${ and }. Throws ConfigError.
std::string value_of_variable(const std::string& inside, const Environment& environment) {
  const std::size_t split = inside.find(":-");
  const std::string name = inside.substr(0, split);
  if (inside.find("${") != std::string::npos)
    throw ConfigError("", "\"${{{}}}\" has a variable in its default, which is not expanded. Give a plain default.",
                      inside);
  if (!is_variable_name(name)) {
    throw ConfigError(
        "", "\"${{{}}}\" is not a variable. Expected ${{NAME}} or ${{NAME:-default}}; $${{ stands for ${{.", inside);
  }
  const auto value = environment(name);
  if (split != std::string::npos) return value && !value->empty() ? *value : inside.substr(split + 2);
  if (value) return *value;
  throw ConfigError("", "the variable {} is not set. Export it, or give a default: ${{{}:-default}}.", name, name);
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
      const bool is_first = num_read_ == kMaxFiles + 1;
      const std::string what = "more than 200 files extend one another. Is one of them extended many times?";
      return is_first ? findings_.mistake({file.string(), 0}, "extends", what) : void();
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

  /// The file that `name` stands for: itself, one in `folder`, or a shipped profile.
  std::optional<fs::path> locate(const std::string& name, const fs::path& folder) const {
    std::error_code code;  // too long a name or an unreadable folder: not found
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
    return fmt::format("no such file{}{}",
                       names.empty() ? "." : fmt::format(", and no shipped profile of that name ({}).", join(names)),
                       did_you_mean(name, names));
  }

  std::vector<Value> layers;

 private:
  // Each base may name two more, so 30 files can expand to a billion.
  static constexpr int kMaxFiles = 200;

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
    for (Value name : extends.is_null() ? std::vector<Value>{extends} : items_of(extends)) {
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
      // Errors quote lines, and a stranger's profile may name any file of this user.
      findings_.mistake(name.place, "extends",
                        "\"" + name.text + "\" does not end in .yaml, .yml or .json. Expected a profile file.");
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
      findings_.mistake(name.place, "extends", fmt::format("forms a cycle: {}.", join(circle, " -> ")));
    }
    chain_.pop_back();
  }

  const ProfileSources& sources_;
  const Environment& environment_;
  Findings& findings_;
  std::vector<fs::path> chain_;
  int num_read_ = 0;
};

std::string spelled_as(const std::string& spelled, const std::string& key) {
  return spelled == key ? key : fmt::format("{} ({})", spelled, key);
}

bool is_harmless(const RefusedName& key, const Value& value) {
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if (number) return number == parse_number(key.harmless);
  return value.is_null() || is_word(value, "false") || is_word(value, "no") || is_word(value, "off") ||
         (!key.harmless.empty() && is_word(value, key.harmless));
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::string replace_braced(const std::string& text, const std::string& open,
                           const std::function<std::string(const std::string&)>& replace) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t found = text.find(open); found != std::string::npos; found = text.find(open, at)) {
    const bool is_escaped = open.front() == '$' && found > at && text[found - 1] == '$';
    const std::size_t begin = found + open.size();
    out += text.substr(at, found - at);
    at = begin;
    if (is_escaped) {
      out += '{';
      continue;
    }
    const std::size_t close = text.find('}', begin);
    if (close == std::string::npos)
      throw ConfigError("", "\"{}\" has no closing brace. Expected {}NAME}}.", text.substr(found), open);
    out += replace(text.substr(begin, close - begin));
    at = close + 1;
  }
  return out + text.substr(at);
}

void replace_variables(Value& value, const std::string& key, const Environment& environment, Findings& findings) {
  try {
    value.text =
        replace_braced(value.text, "${", [&](const auto& inside) { return value_of_variable(inside, environment); });
  } catch (const ConfigError& error) {
    findings.mistake(value.place, key, error.message());
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

std::vector<ShippedProfile> shipped_profiles(const fs::path& folder) {
  std::vector<ShippedProfile> profiles;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() != ".yaml") continue;
    ShippedProfile profile{entry.path().stem().string(), entry.path(), ""};
    std::string line;
    std::ifstream file(entry.path());
    if (std::getline(file, line) && line.starts_with("# ")) profile.summary = line.substr(2);
    profiles.push_back(std::move(profile));
  }
  std::ranges::sort(profiles, {}, &ShippedProfile::name);
  return profiles;
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

bool is_unset(const std::string& key, const Value& value) {
  if (value.is_null()) return true;
  if (key == "eval_datasets") return value.is_list() && value.items.empty();
  return key == "val_set_size" && value.is_scalar() && parse_number(value.text) == 0.0;
}

bool Merger::add_layer(const Value& map) {
  Entries entries, implied;
  layer_ = &map;
  foreign_ = {};
  for (const auto& [name, value] : map.members) {
    if (!is_overruled(name, value)) add_entry(name, value, entries, implied);
  }
  if (const Value* rank = map.find("lora_rank")) lora_rank_ = *rank;
  const bool is_ours = foreign_.keys.empty();
  if (!is_ours) report_foreign();
  refuse_alternatives(entries);
  entries.merge(implied);
  merge(entries);
  return is_ours;
}

bool Merger::is_overruled(const std::string& name, const Value& value) {
  const std::string action = name == "eval_steps" ? "eval" : name == "save_steps" ? "save" : "";
  if (action.empty()) return false;
  for (const std::string& strategy : {action + "_strategy", action + "uation_strategy"}) {
    const Value* found = layer_->find(strategy);
    const std::string word = found && found->is_scalar() ? lower_case(found->text) : "";
    if (word.empty() || word == "steps") continue;
    findings_.note(value.place, name, fmt::format("has no effect with {}: {}", strategy, found->text));
    return true;
  }
  return false;
}

void Merger::warn_of_alpha() {
  const auto rank = lora_rank_.is_scalar() ? parse_number(lora_rank_.text) : std::nullopt;
  const double alpha = AdapterSection{}.lora_alpha;
  const auto ours = values_.find("lora_r");
  const bool decides = ours != values_.end() && ours->second.text == lora_rank_.text;
  if (!rank || !decides || 2 * *rank == alpha || values_.contains("lora_alpha") || values_.contains("init_adapter"))
    return;
  findings_.warn(lora_rank_.place, "lora_rank",
                 fmt::format("lora_alpha is {} here; LLaMA-Factory's default is twice the rank. Set lora_alpha: {} for "
                             "that, or to any other value of your choice.",
                             number_value(alpha).text, number_value(2 * *rank).text));
}

void Merger::add_entry(const std::string& name, const Value& value, Entries& entries, Entries& implied) {
  if (const Field* field = find_field(name)) {
    respell(name, *field, value, entries, implied);
    return;
  }
  const Alias* alias = find_alias(name);
  if (!alias) {
    if (!take_anchors(name, value) && !take_refused(name, value) && !take_foreign(name, value))
      report_unknown(name, value);
    return;
  }
  const bool is_mapped = !alias->meaning.empty();
  if (is_mapped && value.is_null()) return;
  const Rewrite rewrite = alias->rewrite(value);
  if (!rewrite.error.empty()) findings_.mistake(value.place, name, rewrite.error);
  if (!rewrite.note.empty()) findings_.note(value.place, name, rewrite.note);
  if (!rewrite.warning.empty()) findings_.warn(value.place, name, rewrite.warning);
  for (const auto& [key, reset] : rewrite.resets) {
    const auto earlier = values_.find(key);
    if (earlier != values_.end() && earlier->second.text == reset) values_.erase(earlier);
  }
  for (const auto& [key, entry] : rewrite.entries) respell(name, *find_field(key), entry, entries, implied);
}

void Merger::respell(const std::string& spelled, const Field& field, const Value& value, Entries& entries,
                     Entries& implied) {
  const Rewrite rewrite = field.respell ? field.respell(value) : Rewrite{};
  if (!rewrite.error.empty()) return findings_.mistake(value.place, spelled, rewrite.error);
  if (!rewrite.note.empty()) findings_.note(value.place, spelled, rewrite.note);
  for (const auto& [other, implication] : rewrite.implied) implied[other] = {implication, spelled};
  if (rewrite.entries.empty()) put(spelled, field.name, value, entries);
  for (const auto& [other, entry] : rewrite.entries) put(spelled, other, entry, entries);
}

void Merger::put(const std::string& spelled, const std::string& key, const Value& value, Entries& entries) {
  const auto [at, is_new] = entries.try_emplace(key, Entry{value, spelled});
  if (is_new) return;
  findings_.mistake(value.place, spelled,
                    fmt::format("means the same as {} at {}. Keep one.", spelled_as(at->second.spelled, key),
                                at->second.value.place.text()));
}

bool Merger::take_anchors(const std::string& name, const Value& value) {
  if (!name.starts_with("x-") || value.is_scalar()) return false;
  findings_.note(value.place, name, "has no effect itself: a key that starts with x- holds anchors for `<<: *name`");
  return true;
}

bool Merger::take_refused(const std::string& name, const Value& value) {
  const auto found = std::ranges::find(refused_names(), name, &RefusedName::name);
  if (found == refused_names().end()) return false;
  if (is_harmless(*found, value)) {
    findings_.note(value.place, name, "has no effect: this is always the case");
  } else {
    findings_.mistake(value.place, name, found->reason);
  }
  return true;
}

bool Merger::take_foreign(const std::string& name, const Value& value) {
  const std::string tool = tool_of_key_ && !value.is_null() ? tool_of_key_(name) : "";
  if (tool.empty()) return false;
  if (foreign_.keys.empty()) foreign_.place = value.place;
  foreign_.keys.push_back(name);
  if (std::ranges::count(foreign_.tools, tool) == 0) foreign_.tools.push_back(tool);
  return true;
}

void Merger::report_foreign() {
  constexpr std::size_t kShown = 4;
  const std::size_t num_keys = foreign_.keys.size();
  foreign_.keys.resize(std::min(num_keys, kShown));
  std::string names = join(foreign_.keys);
  if (num_keys > kShown) names += fmt::format(" and {} more", num_keys - kShown);
  const std::string file = foreign_.place.line > 0 ? shell_line({foreign_.place.file}) : "FILE";
  findings_.mistake(foreign_.place, "",
                    fmt::format("{} {} of {}: run `lora-train convert {}`.", names,
                                num_keys == 1 ? "is a key" : "are keys", join(foreign_.tools, " and "), file));
}

void Merger::report_unknown(const std::string& name, const Value& value) {
  std::vector<std::string> known = field_names();
  for (const Alias* alias : aliases()) known.push_back(alias->name);
  std::vector<std::string> near;
  if (name.size() >= 3) near = nearest_names(name, known);
  for (std::string& neighbour : near) {
    if (const Alias* alias = find_alias(neighbour)) neighbour = alias->key;
  }
  const std::string suggestion = did_you_mean(near);
  if (value.is_null()) {
    findings_.note(value.place, name, "unknown key, which has no effect without a value." + suggestion);
    return;
  }
  findings_.mistake(value.place, name,
                    fmt::format("unknown key.{} All keys: docs/profile.md, or lora-train check --keys.", suggestion));
}

void Merger::refuse_alternatives(const Entries& entries) {
  for (const auto& group : alternative_groups()) {
    const Entry* first = nullptr;
    for (const auto& key : group) {
      const auto found = entries.find(key);
      if (found == entries.end() || is_unset(key, found->second.value)) continue;
      const Entry& entry = found->second;
      if (first) {
        const bool in_order = first->value.place.line <= entry.value.place.line;
        const Entry &earlier = in_order ? *first : entry, &later = in_order ? entry : *first;
        findings_.mistake(later.value.place, later.spelled,
                          fmt::format("conflicts with {} at {}: they set the same thing. Keep one.", earlier.spelled,
                                      earlier.value.place.text()));
      }
      first = &entry;
    }
  }
}

void Merger::merge(const Entries& entries) {
  for (const auto& [key, entry] : entries) {
    if (is_unset(key, entry.value)) continue;
    for (const auto& group : alternative_groups()) {
      if (std::find(group.begin(), group.end(), key) == group.end()) continue;
      for (const auto& other : group) values_.erase(other);
    }
  }
  for (const auto& [key, entry] : entries) values_[key] = entry.value;
}

void Merger::add_setting(const std::string& path, const Value& value, const Place& place) {
  const auto steps = parse_setting_path(path);
  if (!steps) {
    findings_.mistake(place, path, "is not a place in a profile. Expected key, key.name, key[0].name or key[+].name.");
    return;
  }
  const std::string root = steps->front().name;
  if (steps->size() == 1) {
    add_layer(map_value({{root, value}}));
    return;
  }
  if (!find_field(root)) {
    const Alias* alias = find_alias(root);
    if (alias) findings_.mistake(place, path, "to set a nested value, use the key's own name: " + alias->key + ".");
    if (!alias && !take_refused(root, value)) report_unknown(root, value);
    return;
  }
  const auto current = values_.find(root);
  Value edited = current == values_.end() ? null_value() : current->second;
  const std::string problem = set_at(edited, *steps, 1, value);
  if (!problem.empty()) {
    findings_.mistake(place, path, problem);
    return;
  }
  edited.place = place;
  merge({{root, Entry{edited, root}}});
}

}  // namespace lora_train
