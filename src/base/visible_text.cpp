#include "lora_train/base/visible_text.h"

#include <algorithm>
#include <cstdint>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train {
namespace {

bool is_steering(std::uint32_t code) {
  return (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string visible_text(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = utf8_char(text, at);
    const std::size_t length = std::max<std::size_t>(found.length, 1);
    const std::uint32_t code = found.length > 0 ? found.code_point : static_cast<unsigned char>(text[at]);
    if (found.length == 0 || is_steering(code)) {
      const bool is_byte = found.length == 0 || code < 0x20;  // the others are valid escapes of JSON
      out += string_printf(is_byte ? "\\x%02x" : "\\u%04x", code);
    } else {
      out.append(text, at, length);
    }
    at += length;
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : visible_text(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace lora_train
