// Two texts in two columns.
#pragma once

#include <string>
#include <string_view>

namespace lora_train::cli {

/// Both texts under their heads, wrapped at words (at any character where a word is too long), in columns that together
/// are at most `width` wide; one below the other where that leaves less than 20 columns each. Ends with a line end. Wide
/// characters count as two columns. Both texts are shown by visible_text.
std::string side_by_side(std::string_view left_head, std::string_view left, std::string_view right_head,
                         std::string_view right, int width);

}  // namespace lora_train::cli
