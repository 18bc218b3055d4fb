// Untrusted text on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lora_train {

/// `text` with everything that would control a terminal escaped ("\x1b", "\u202e"): control characters other than
/// the line feed, marks that change the writing direction, and bytes that are not UTF-8.
std::string visible_text(std::string_view text);

/// The same for text and attributes of a page, with & < > and " escaped.
std::string escape_html(std::string_view text);

}  // namespace lora_train
