// UTF-8 by hand: validation, decoding, lossy repair, and making untrusted text visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train {

/// One character: its code point and its length in bytes; length 0 if the bytes are not a valid character.
struct Utf8Char {
  std::uint32_t code_point = 0;
  std::size_t length = 0;
};

/// The character at text[at]; `at` < text.size().
Utf8Char utf8_char(std::string_view text, std::size_t at);

/// Position of the first byte that is not valid UTF-8 (surrogates and overlong forms are not).
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, std::uint32_t code_point);

/// Every maximal invalid part becomes U+FFFD, as Unicode recommends and Rust's from_utf8_lossy does.
std::string repair_utf8(std::string_view bytes);

/// True if the byte continues a character.
inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

/// Number of characters; `text` is valid.
std::size_t count_chars(std::string_view text);

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";

/// Where the character before `at` > 0 begins.
inline std::size_t char_begin_before(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && is_continuation(text[at]));
  return at;
}

/// `text` with everything that would control a terminal escaped ("\x1b", "\u202e"): control characters other than
/// the line feed, marks that change the writing direction, and bytes that are not UTF-8.
std::string visible_text(std::string_view text);

/// The same for text and attributes of a page, with & < > and " escaped.
std::string escape_html(std::string_view text);

}  // namespace lora_train
