// Checks that need more than one key.
#pragma once

#include <map>

#include "lora_train/config/findings.h"
#include "lora_train/config/load.h"

namespace lora_train {

/// `places` holds the place of each key that was given.
void check_consistency(const LoadedProfile& loaded, const ProfileSources& sources,
                       const std::map<std::string, Place>& places, Findings& findings);

}  // namespace lora_train
