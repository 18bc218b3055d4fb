// What every tokenizer asks of a text before it looks at it.
#pragma once

#include <string_view>

namespace lora_train::tokenizer {

/// DataError (byte N) unless the text is valid UTF-8 below 2 GiB.
void check_input_text(std::string_view text);

}  // namespace lora_train::tokenizer
