#include "lora_train/config/load.h"

#include <algorithm>

#include "consistency.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/layers.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

// The only place that expands a leading ~ to the home folder: all other code sees a plain path.
void expand_home(Profile& profile, const Environment& environment) {
  const std::string home = environment("HOME").value_or("");
  if (home.empty()) return;
  const auto expand = [&](std::string& path) {
    if (path == "~" || path.starts_with("~/")) path.replace(0, 1, home);
  };
  for (std::string* path : {&profile.model.path, &profile.model.chat_template, &profile.adapter.init_adapter,
                            &profile.data.dataset_prepared_path, &profile.data.stage_dir, &profile.run.output_dir,
                            &profile.run.resume_from_checkpoint, &profile.teacher.teacher,
                            &profile.teacher.teacher_system, &profile.teacher.student_system}) {
    expand(*path);
  }
  for (auto& spec : profile.data.datasets) expand(spec.path);
  for (auto& spec : profile.data.eval_datasets) expand(spec.path);
  for (auto& task : profile.tasks.eval_tasks) expand(task.data.path);
}

// Defaults that depend on other keys.
void follow(LoadedProfile& loaded) {
  Profile& profile = loaded.profile;
  const auto is_given = [&](const std::string& key) { return profile.is_given(key); };
  if (!is_given("global_batch_size") && profile.schedule.gradient_accumulation_steps) {
    profile.schedule.global_batch_size.reset();
    loaded.origin["global_batch_size"] = "follows gradient_accumulation_steps";
  }
  if (!is_given("num_epochs") && profile.schedule.max_steps) {
    profile.schedule.num_epochs.reset();
    loaded.origin["num_epochs"] = "follows max_steps";
  }
  if (!profile.adapter.init_adapter.empty()) {
    for (const char* key :
         {"lora_r", "lora_alpha", "lora_target_modules", "use_rslora", "rank_pattern", "alpha_pattern"}) {
      if (!is_given(key)) loaded.origin[key] = "follows init_adapter";
    }
  }
}

// A written profile has null for the unset key of a pair; that does not ask for neither.
bool is_silence(const std::string& key, const Value& value, const std::map<std::string, Value>& values) {
  if (!value.is_null()) return false;
  if (key == "num_epochs" || key == "global_batch_size") {
    const auto other = values.find(key == "num_epochs" ? "max_steps" : "gradient_accumulation_steps");
    return other != values.end() && !other->second.is_null();
  }
  return true;
}

void read_fields(const std::map<std::string, Value>& values, LoadedProfile& loaded,
                 std::map<std::string, Place>& places, Findings& findings) {
  for (const Field* field : all_fields()) {
    const auto found = values.find(field->name);
    if (found == values.end()) {
      loaded.origin[field->name] = "default";
      continue;
    }
    field->read(found->second, loaded.profile, findings);
    loaded.origin[field->name] = found->second.place.text();
    if (is_silence(field->name, found->second, values)) continue;
    places[field->name] = found->second.place;
    loaded.profile.given_keys.push_back(field->name);
  }
  std::sort(loaded.profile.given_keys.begin(), loaded.profile.given_keys.end());
}

std::string commented(const std::string& line, const std::string& comment) {
  if (comment.empty()) return line + "\n";
  constexpr std::size_t kColumn = 40;
  return fmt::format("{}{}# {}\n", line, std::string(line.size() < kColumn ? kColumn - line.size() : 1, ' '), comment);
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

/// The keys that `is_shown`, by group, each with its origin.
std::string yaml_of(const Profile& profile, const std::map<std::string, std::string>& origin, const auto& is_shown) {
  std::string out;
  for (const auto& group : field_groups()) {
    std::string entries;
    for (const auto& field : group.fields) {
      const auto found = origin.find(field.name);
      const std::string comment = found == origin.end() ? "" : found->second;
      if (is_shown(comment)) entries += yaml_entry(field.name, field.write(profile), one_line(comment));
    }
    if (!entries.empty()) out += fmt::format("{}# {}\n{}", out.empty() ? "" : "\n", group.title, entries);
  }
  return out;
}

bool shows_all(const std::string&) { return true; }

// A limit that was lifted counts as raised.
bool is_raised(const Value& before, const Value& after) {
  if (after.is_null()) return true;
  const auto from = parse_number(before.text), to = parse_number(after.text);
  return from && to && *to >= *from;
}

}  // namespace

bool Profile::is_given(const std::string& key) const {
  return std::binary_search(given_keys.begin(), given_keys.end(), key);
}

Override parse_override(const std::string& text, const std::string& where) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError(where, "\"{}\" is not a setting. Expected key=value, such as learning_rate=1e-4.", text);
  }
  return {text.substr(0, equals), text.substr(equals + 1), where, false};
}

Override flag_override(const std::string& key, const std::string& value, const std::string& flag) {
  return {key, value, flag, true};
}

LoadedProfile load_profile(const ProfileSources& sources) {
  Findings findings;
  LoadedProfile loaded = load_profile(sources, findings);
  findings.throw_mistakes();
  return loaded;
}

LoadedProfile load_profile(const ProfileSources& sources, Findings& findings) {
  const Environment environment = sources.environment ? sources.environment : process_environment;
  Merger merger(findings, sources.are_written_by_runs ? ToolOfKey() : sources.tool_of_key);
  const auto layers = read_layers(sources, environment, findings);
  ProfileSources needs = sources;
  // A required key may be in the part that could not be read.
  if (findings.has_mistakes()) needs.needs_model = needs.needs_datasets = false;
  const auto add = [&](const std::vector<Override>& settings) {
    for (const auto& setting : settings) {
      merger.add_setting(setting.path, override_value(setting, environment, findings), {setting.where, 0});
    }
  };
  add(sources.fallbacks);
  for (const auto& layer : layers) {
    if (!merger.add_layer(layer)) needs.needs_model = needs.needs_datasets = false;
  }
  add(sources.overrides);
  merger.warn_of_alpha();
  LoadedProfile loaded;
  std::map<std::string, Place> places;
  read_fields(merger.values(), loaded, places, findings);
  if (!sources.are_written_by_runs) expand_home(loaded.profile, environment);
  follow(loaded);
  check_consistency(loaded, needs, places, findings);
  const auto output_place = places.find("output_dir");
  if (!sources.are_written_by_runs) {
    expand_output_dir(loaded.profile, output_place == places.end() ? Place{} : output_place->second, findings);
  }
  loaded.notes = findings.notes();
  loaded.warnings = findings.warnings();
  return loaded;
}

Profile load_written_profile(const std::filesystem::path& file) {
  ProfileSources sources;
  sources.profiles = {file.string()};
  sources.are_written_by_runs = true;
  return load_profile(sources).profile;
}

std::string yaml_entry(const std::string& key, const Value& value, const std::string& comment) {
  if (!value.is_list() || value.items.empty() || !value.items.front().is_map()) {
    return commented(fmt::format("{}: {}", key, to_flow_yaml(value)), comment);
  }
  std::string out = commented(key + ":", comment);
  for (const auto& item : value.items) out += fmt::format("  - {}\n", to_flow_yaml(item));
  return out;
}

std::string to_yaml(const Profile& profile) { return yaml_of(profile, {}, shows_all); }

std::string to_yaml(const LoadedProfile& loaded) { return yaml_of(loaded.profile, loaded.origin, shows_all); }

std::string to_short_yaml(const LoadedProfile& loaded, int& num_left_out) {
  num_left_out = 0;
  return yaml_of(loaded.profile, loaded.origin, [&](const std::string& origin) {
    num_left_out += origin == "default";
    return origin != "default";
  });
}

std::string to_json(const Profile& profile) {
  std::vector<Value::Member> members;
  for (const Field* field : all_fields()) members.push_back({field->name, field->write(profile)});
  return to_json_text(map_value(std::move(members)));
}

std::string profile_hash(const Profile& profile) { return hash128_hex(to_json(profile)); }

std::vector<ProfileDifference> diff_profiles(const Profile& old_profile, const Profile& new_profile) {
  std::vector<ProfileDifference> differences;
  for (const Field* field : all_fields()) {
    const Value before = field->write(old_profile), after = field->write(new_profile);
    const std::string old_text = to_flow_yaml(before), new_text = to_flow_yaml(after);
    if (old_text == new_text) continue;
    const bool is_allowed =
        field->on_resume == OnResume::kFree || (field->on_resume == OnResume::kMayGrow && is_raised(before, after));
    differences.push_back({field->name, old_text, new_text, is_allowed});
  }
  return differences;
}

}  // namespace lora_train
