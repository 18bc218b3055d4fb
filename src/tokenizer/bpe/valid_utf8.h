// Reads text known to be valid UTF-8, several times faster than text that is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {

/// utf8_char() for valid text; a character must begin at `at` < text.size().
inline Utf8Char valid_utf8_char(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(text[at + i])}; };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1FU) << 6U | (byte(1) & 0x3FU), 2};
  const std::uint32_t middle = (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
  if (lead < 0xF0) return {(lead & 0x0FU) << 12U | middle, 3};
  return {(lead & 0x07U) << 18U | middle << 6U | (byte(3) & 0x3FU), 4};
}

/// Position of the first byte >= 0x80 at or after `from`, or the text's size.
std::size_t skip_ascii(std::string_view text, std::size_t from);

/// Every tokenizer's check of a text before use: DataError (byte N) unless it is valid UTF-8 below 2 GiB.
void check_input_text(std::string_view text);

}  // namespace lora_train::tokenizer
