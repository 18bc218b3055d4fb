// The decoder of tokenizer.json: token spellings to text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "json_place.h"

namespace lora_train::tokenizer {

/// Changes the list of spellings; the text is their concatenation.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

/// Empty for a null or absent decoder (tokens are then joined with spaces). FormatError names what is not supported.
Decoder load_decoder(const JsonPlace& place);

/// The byte of "<0x0A>"-style tokens, else -1. Exactly two hexadecimal digits.
int byte_of_token(std::string_view token);

}  // namespace lora_train::tokenizer
