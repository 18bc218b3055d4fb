#include "lora_train/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lora_train/base/text.h"

namespace lora_train {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

struct LeadByte {
  std::size_t length;    // of the whole character, 0 = cannot lead
  unsigned first, last;  // allowed second byte
  std::uint32_t bits;    // payload of the lead byte
};

LeadByte lead_byte(unsigned lead) {
  if (lead < 0x80) return {1, 0, 0, lead};
  if (lead >= 0xC2 && lead <= 0xDF) return {2, 0x80, 0xBF, lead & 0x1FU};
  if (lead == 0xE0) return {3, 0xA0, 0xBF, 0};
  if (lead == 0xED) return {3, 0x80, 0x9F, lead & 0x0FU};
  if (lead >= 0xE1 && lead <= 0xEF) return {3, 0x80, 0xBF, lead & 0x0FU};
  if (lead == 0xF0) return {4, 0x90, 0xBF, 0};
  if (lead >= 0xF1 && lead <= 0xF3) return {4, 0x80, 0xBF, lead & 0x07U};
  if (lead == 0xF4) return {4, 0x80, 0x8F, lead & 0x07U};
  return {0, 0, 0, 0};
}

// Bytes from `at` that begin a character validly; equals the character's length when it is whole.
std::size_t valid_prefix(std::string_view text, std::size_t at, const LeadByte& lead) {
  std::size_t have = 1;
  while (have < lead.length && at + have < text.size()) {
    const unsigned byte = byte_at(text, at + have);
    const bool fits = have == 1 ? byte >= lead.first && byte <= lead.last : (byte & 0xC0U) == 0x80U;
    if (!fits) break;
    ++have;
  }
  return have;
}

bool is_steering(std::uint32_t code) {
  return (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

Utf8Char utf8_char(std::string_view text, std::size_t at) {
  const LeadByte lead = lead_byte(byte_at(text, at));
  if (lead.length <= 1) return {lead.bits, lead.length};
  if (valid_prefix(text, at, lead) != lead.length) return {};
  std::uint32_t code = lead.bits;
  for (std::size_t i = 1; i < lead.length; ++i) code = (code << 6U) | (byte_at(text, at + i) & 0x3FU);
  return {code, lead.length};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (at + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        at += 8;
        continue;
      }
    }
    // Most three-byte characters need no range check of their second byte.
    const unsigned lead = byte_at(text, at);
    const bool is_plain = lead > 0xE0 && lead < 0xED && at + 2 < text.size() && is_continuation(text[at + 1]) &&
                          is_continuation(text[at + 2]);
    const std::size_t length = lead < 0x80 ? 1 : is_plain ? 3 : utf8_char(text, at).length;
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | (code >> 6U));
    put(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    put(0xE0U | (code >> 12U));
    put(0x80U | ((code >> 6U) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  } else {
    put(0xF0U | (code >> 18U));
    put(0x80U | ((code >> 12U) & 0x3FU));
    put(0x80U | ((code >> 6U) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  }
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  std::size_t at = 0;
  while (at < bytes.size()) {
    const LeadByte lead = lead_byte(byte_at(bytes, at));
    const std::size_t have = lead.length == 0 ? 1 : valid_prefix(bytes, at, lead);
    if (lead.length != 0 && have == lead.length) {
      out.append(bytes.substr(at, have));
    } else {
      out.append(kReplacementChar);
    }
    at += have;
  }
  return out;
}

std::size_t count_chars(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += is_continuation(c) ? 0U : 1U;
  return count;
}

std::string visible_text(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = utf8_char(text, at);
    const std::size_t length = std::max<std::size_t>(found.length, 1);
    const std::uint32_t code = found.length > 0 ? found.code_point : static_cast<unsigned char>(text[at]);
    if (found.length == 0 || is_steering(code)) {
      const bool is_byte = found.length == 0 || code < 0x20;  // the others are valid escapes of JSON
      out += is_byte ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
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
