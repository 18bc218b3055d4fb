#include "valid_utf8.h"

#include <cstring>
#include <limits>

#include "lora_train/base/error.h"

namespace lora_train::tokenizer {
namespace {

// True if find_invalid_utf8() finds nothing.
bool is_valid_utf8(std::string_view text) {
  for (std::size_t at = skip_ascii(text, 0); at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    // Most three-byte characters need no range check of their second byte.
    const bool is_plain = lead > 0xE0 && lead < 0xED && at + 2 < text.size() && is_continuation(text[at + 1]) &&
                          is_continuation(text[at + 2]);
    if (is_plain) {
      at += 3;
    } else if (lead < 0x80) {
      at = skip_ascii(text, at);
    } else {
      const std::size_t length = utf8_char(text, at).length;
      if (length == 0) return false;
      at += length;
    }
  }
  return true;
}

}  // namespace

std::size_t skip_ascii(std::string_view text, std::size_t from) {
  std::size_t at = from;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

void check_input_text(std::string_view text) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw DataError("byte 0", "a text of {} bytes is too long; the limit is 2 GiB", text.size());
  }
  if (is_valid_utf8(text)) return;
  throw DataError(fmt::format("byte {}", find_invalid_utf8(text).value_or(0)),
                  "the text is not valid UTF-8; convert the file to UTF-8");
}

}  // namespace lora_train::tokenizer
