#include "valid_utf8.h"

#include <cstring>
#include <limits>

#include "lora_train/base/error.h"

namespace lora_train::tokenizer {

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
  if (const auto at = find_invalid_utf8(text)) {
    throw DataError(fmt::format("byte {}", *at), "the text is not valid UTF-8; convert the file to UTF-8");
  }
}

}  // namespace lora_train::tokenizer
