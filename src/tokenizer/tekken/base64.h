// Standard base64 (RFC 4648, with padding), as tekken.json spells its tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lora_train::tokenizer {

/// The bytes; nothing when the text is no base64: foreign characters, a length that is no multiple of 4, bits after the
/// last byte.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace lora_train::tokenizer
