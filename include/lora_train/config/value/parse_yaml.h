// YAML (and JSON, which is YAML) to Values with line numbers.
#pragma once

#include <string>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// Parses one document; an empty one is null. `place.file` names it in places and messages; a `place.line` above 0 is
/// the line of all values (a --set has no lines of its own).
/// `<<: *base` and `<<: [*first, *second]` add the members that the map does not have itself, with their own lines.
/// Throws ConfigError: syntax, tabs as indentation, a key twice in one map, a key that is not text, more than one
/// document, more than 100,000 values or nesting that the parser refuses.
Value parse_yaml(const std::string& text, const Place& place);

}  // namespace lora_train
