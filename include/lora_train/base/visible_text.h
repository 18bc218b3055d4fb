// Text of strangers on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lora_train {

/// `text` with everything that would steer a terminal shown by its number ("\x1b", "\u202e"): control characters save
/// the line feed, marks that turn the direction of writing, and bytes that are not UTF-8.
std::string visible_text(std::string_view text);

}  // namespace lora_train
