// Resolves files, --set and flags into one Profile, and writes a Profile back as text.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

/// One setting from the command line; it wins over all files.
struct Override {
  std::string path;  ///< a key, or a place inside one: "a.b[0].c"; "datasets[+].path" appends an entry
  std::string value;
  std::string where;     ///< its name in messages: "--set", "--model"
  bool literal = false;  ///< the value is plain text, never a list, a map or null (paths from flags)
};

/// Parses "key=value" from --set or a trailing argument. A value that starts with [ { " or ' is read as YAML. Throws
/// ConfigError(where) if there is no '=' or no key.
Override parse_override(const std::string& text, const std::string& where = "--set");

/// A flag's value, taken literally: flag_override("model", path, "--model"), ("train_data", file, "--train-data").
Override flag_override(const std::string& key, const std::string& value, const std::string& flag);

/// An environment variable of this process.
std::optional<std::string> process_environment(const std::string& name);

/// The tool (Axolotl, LLaMA-Factory, TRL) that has this key; empty = none. Module convert knows them.
using ToolOfKey = std::function<std::string(const std::string&)>;

struct ProfileSources {
  std::vector<std::string>
      profiles;  ///< files in order, later wins; a NAME that is not a file is looked up in `shipped`
  std::vector<std::filesystem::path> shipped;  ///< folders with shipped profiles
  std::vector<Override> overrides;             ///< in order, later wins
  std::vector<Override> fallbacks;             ///< everything else overrides them
  bool needs_model = true;                     ///< `model` is required
  bool needs_datasets = true;                  ///< `datasets` is required (false for generate and the like)
  /// Returns why `target_gpu` may not have this value, or an empty text if it may. Called only if the key is given.
  std::function<std::string(const std::string&)> why_not_gpu;
  /// Looks up ${NAME}; empty = the environment of the process.
  std::function<std::optional<std::string>(const std::string&)> environment;
  ToolOfKey tool_of_key = {};
  /// The files are profile.yaml of runs, already resolved: ${NAME}, ~ and {key} are plain text, and `extends` is a
  /// mistake.
  bool are_written_by_runs = false;
};

struct LoadedProfile {
  Profile profile;
  std::map<std::string, std::string> origin;  ///< key -> "file:line", "--set", "default" or "follows <key>"
  std::vector<std::string> notes;             ///< one line each: aliases used, values mapped
  std::vector<std::string> warnings;          ///< one line each: settings that have no effect or are often a mistake
};

struct ShippedProfile {
  std::string name;  ///< "h100"
  std::filesystem::path file;
  std::string summary;  ///< first line of its comment
};

/// The profiles (*.yaml) in a folder, by name; empty if the folder does not exist.
std::vector<ShippedProfile> shipped_profiles(const std::filesystem::path& folder);

/// Finds a shipped profile by name, in any case, with or without .yaml or .json; h100-bf16 means h100.
std::optional<std::filesystem::path> find_shipped(const std::string& name,
                                                  const std::vector<std::filesystem::path>& folders);

/// Reads all sources, resolves them and checks ranges and contradictions; opens no file that the profile names.
/// Throws one ConfigError with all mistakes.
LoadedProfile load_profile(const ProfileSources& sources);
/// The same for callers with more checks: adds the mistakes to `findings` and returns what could be read. A wrong value
/// leaves the default.
LoadedProfile load_profile(const ProfileSources& sources, Findings& findings);

/// Loads profile.yaml of a run, which may be a stranger's: reads no other file and no variable. Throws like
/// load_profile.
Profile load_written_profile(const std::filesystem::path& file);

/// All keys as YAML that load_profile reads back to the same Profile.
std::string to_yaml(const Profile& profile);
/// The same with a comment after each key that says where its value came from.
std::string to_yaml(const LoadedProfile& loaded);
/// The same without keys that were not set, which have their defaults. `num_left_out` counts them.
std::string to_short_yaml(const LoadedProfile& loaded, int& num_left_out);
/// JSON in one line with every key, null if it has no value.
std::string to_json(const Profile& profile);

/// Hash of all keys: 32 hexadecimal digits, equal for equal profiles.
std::string profile_hash(const Profile& profile);

struct ProfileDifference {
  std::string key;
  std::string old_value, new_value;  ///< as a profile spells them
  bool allowed_on_resume = false;    ///< by its declaration; also true for a raised num_epochs or max_steps
};

/// Keys whose values differ, in the order of docs/profile.md.
std::vector<ProfileDifference> diff_profiles(const Profile& old_profile, const Profile& new_profile);

/// "key: value", followed by the comment, if any; a list of maps has one map per line. Ends with a line feed.
std::string yaml_entry(const std::string& key, const Value& value, const std::string& comment);

}  // namespace lora_train
