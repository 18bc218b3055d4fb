// Checks before a run starts, and the profiles that come with the program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/load.h"

namespace lora_train {

/// A setting that is known but not built yet.
struct UnbuiltFeature {
  std::string key;
  std::string text;  ///< "one other than precision is not built yet. Leave base_precision out; ..."
};

std::vector<UnbuiltFeature> unbuilt_features(const Profile& profile);

/// Adds the profile's unbuilt features with their places.
void add_unbuilt_features(const LoadedProfile& loaded, Findings& findings);

/// Throws one ConfigError that lists what add_unbuilt_features() finds.
void refuse_unbuilt_features(const LoadedProfile& loaded);

struct ShippedProfile {
  std::string name;  ///< "h100"
  std::filesystem::path file;
  std::string summary;  ///< first line of its comment
};

/// The profiles (*.yaml) in a folder, by name; empty if the folder does not exist.
std::vector<ShippedProfile> shipped_profiles(const std::filesystem::path& folder);

}  // namespace lora_train
