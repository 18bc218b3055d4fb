// The files behind a profile, as maps in the order in which they are merged.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/load.h"
#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// Each profile, after the files that it extends, variables replaced, `extends` taken out.
std::vector<Value> read_layers(const ProfileSources& sources, const Environment& environment, Findings& findings);

/// Replaces ${VAR} and ${VAR:-default} in all texts of `value`; $${ stands for ${. An unset variable is a mistake
/// named with `key`.
void replace_variables(Value& value, const std::string& key, const Environment& environment, Findings& findings);

/// The value of a setting of the command line, at its place. Only what looks like a list, a map or a quoted text is YAML:
/// `--set run_name=a: b` is text.
Value override_value(const Override& setting, const Environment& environment, Findings& findings);

}  // namespace lora_train
