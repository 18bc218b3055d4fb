// What `lora-train check` prints, and the checks before a run starts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/load.h"

namespace lora_train {

/// Settings that are known but not supported yet, one line each: "optim: adamw_8bit is not supported yet. Use optim: adamw_torch."
std::vector<std::string> unbuilt_features(const Profile& profile);

/// Throws one ConfigError that lists unbuilt_features(), if there are any. A run calls this first.
void refuse_unbuilt_features(const LoadedProfile& loaded);

/// One line for each file that the profile names and that does not exist (model if it looks like a path, data files
/// and globs, chat_template, init_adapter, resume_from_checkpoint). Without files: an empty list.
std::vector<std::string> missing_files(const LoadedProfile& loaded);

/// Throws one ConfigError that lists missing_files(), if there are any.
void refuse_missing_files(const LoadedProfile& loaded);

/// `check --keys`: one line per key with default, values and meaning; `filter` (may be empty) keeps keys that contain
/// it.
std::string keys_table(const std::string& filter = "");

/// The same for programs, one JSON object per key and line: key, group, default, values, help, on_resume.
std::string keys_json(const std::string& filter = "");

/// The whole of docs/profile.md.
std::string profile_reference_markdown();

struct ShippedProfile {
  std::string name;  ///< "h100"
  std::filesystem::path file;
  std::string summary;  ///< first line of its comment
};

/// Profiles (*.yaml) of a folder by name; empty when the folder is not there.
std::vector<ShippedProfile> shipped_profiles(const std::filesystem::path& folder);

/// Names of all keys, in the order of docs/profile.md.
std::vector<std::string> profile_keys();

}  // namespace lora_train
