// Properties of split patterns with the characters of Unicode 16, on a PCRE2 that knows Unicode 14.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lora_train::tokenizer {

/// What stands in a class of a PCRE2 pattern for \p{name}; nothing for a property whose characters were not compared
/// with those of the reference tokenizers' engine.
std::optional<std::string> property_members(std::string_view name);

}  // namespace lora_train::tokenizer
