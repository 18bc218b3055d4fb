// The printable alphabet of byte-level BPE: each of the 256 bytes has one character (GPT-2's table).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lora_train::tokenizer {

/// The bytes that a token of the vocabulary stands for; nothing when it has a character outside the alphabet.
std::optional<std::string> byte_level_to_bytes(std::string_view token);

/// The bytes as the vocabulary spells them.
std::string bytes_to_byte_level(std::string_view bytes);

}  // namespace lora_train::tokenizer
