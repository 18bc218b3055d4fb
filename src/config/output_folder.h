// {key} in output_dir.
#pragma once

#include "lora_train/config/findings.h"
#include "lora_train/config/profile.h"

namespace lora_train {

/// Replaces each {key} of a scalar key in output_dir by its value: a slash becomes '-', of a path only the
/// last part is taken. An unknown or list key is a mistake at `place`.
void expand_output_dir(Profile& profile, const Place& place, Findings& findings);

}  // namespace lora_train
