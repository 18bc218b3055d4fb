#include "byte_level.h"

#include <array>
#include <cstdint>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::size_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that are not printable

struct Alphabet {
  std::array<std::uint32_t, 256> char_of_byte{};
  std::array<int, kAlphabetEnd> byte_of_char{};
};

Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of_char.fill(-1);
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const std::uint32_t code = printable ? byte : next++;
    alphabet.char_of_byte[byte] = code;
    alphabet.byte_of_char[code] = static_cast<int>(byte);
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet instance = make_alphabet();
  return instance;
}

}  // namespace

std::optional<std::string> byte_level_to_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Char c = utf8_char(token, at);
    if (c.length == 0 || c.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet().byte_of_char[c.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    at += c.length;
  }
  return bytes;
}

std::string bytes_to_byte_level(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) append_utf8(token, alphabet().char_of_byte[static_cast<unsigned char>(byte)]);
  return token;
}

}  // namespace lora_train::tokenizer
