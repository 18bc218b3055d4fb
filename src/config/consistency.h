// Checks that need more than one key, and the placeholders of output_dir.
#pragma once

#include <map>

#include "lora_train/config/keys/profile.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/findings.h"

namespace lora_train {

/// `places` holds the place of each key that was given.
void check_consistency(const LoadedProfile& loaded, const ProfileSources& sources,
                       const std::map<std::string, Place>& places, Findings& findings);

/// Replaces each {key} of a scalar key in output_dir with its value: slashes become '-', and only the last part of a
/// path is used. An unknown or list key is a mistake at `place`.
void expand_output_dir(Profile& profile, const Place& place, Findings& findings);

}  // namespace lora_train
