// Writes tokenizer.model files by hand, field by field.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace lora_train::testing_support {

inline std::string varint_field(int number, unsigned value) {
  return std::string(1, static_cast<char>(number << 3)) + static_cast<char>(value);
}
inline std::string varint(std::size_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7U) out += static_cast<char>((value & 0x7FU) | 0x80U);
  return out + static_cast<char>(value);
}
inline std::string bytes_field(int number, const std::string& bytes) {
  return varint((static_cast<std::size_t>(number) << 3U) | 2U) + varint(bytes.size()) + bytes;
}
inline std::string score_field(float score) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return "\x15" + bytes;
}

struct Piece {
  std::string text;
  float score;
  unsigned type;
};

inline std::string piece_field(const Piece& piece) {
  return bytes_field(1, bytes_field(1, piece.text) + score_field(piece.score) + varint_field(3, piece.type));
}

inline const std::string kBpe = varint_field(3, 2);
inline const std::string kUnigram = varint_field(3, 1);
inline const std::string kFallback = kBpe + std::string("\x98\x02\x01", 3);  // byte_fallback: true
inline const std::string kIdentity = varint_field(4, 0);  // remove_extra_whitespaces: false; the rest by default

inline std::string model_bytes(const std::vector<Piece>& pieces, const std::string& trainer = kBpe,
                               const std::string& normalizer = kIdentity) {
  std::string bytes;
  for (const Piece& piece : pieces) bytes += piece_field(piece);
  return bytes + bytes_field(2, trainer) + bytes_field(3, normalizer);
}

inline const std::vector<Piece> kPieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"\xE2\x96\x81", -9, 1},
                                           {"a", -9, 1},    {"b", -9, 1},  {"ab", -2, 1},  {"ba", -1, 1},
                                           {"<u>", 0, 4},   {"aa", -3, 1}};

// kPieces and the pieces of the first `count` bytes.
inline std::vector<Piece> with_bytes(int count, const char* spelling = "<0x%02X>") {
  auto pieces = kPieces;
  for (int byte = 0; byte < count; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, spelling, byte);
    pieces.push_back({name, 0, 6});
  }
  return pieces;
}

// A normalisation table (double-array trie as of darts-clone) that makes "\xC3\xA9b" of "a".
inline constexpr std::uint32_t kCharsmapLetter = 256U ^ 'a';
inline const std::string kCharsmapStrings(
    "\xC3\xA9"
    "b\0",
    4);
inline std::vector<std::uint32_t> charsmap_units() {
  std::vector<std::uint32_t> units(512, 0x80000000U);  // no byte leads there
  units[0] = 256U << 10U;                              // the root's children stand at 256 ^ byte
  units[kCharsmapLetter] = 1U << 10U | 0x100U | 'a';   // ends a rule; its string is said one unit beside it
  return units;
}
inline std::string charsmap_bytes(const std::vector<std::uint32_t>& units = charsmap_units(),
                                  const std::string& strings = kCharsmapStrings) {
  const auto trie_bytes = static_cast<std::uint32_t>(4 * units.size());
  return std::string(reinterpret_cast<const char*>(&trie_bytes), 4) +
         std::string(reinterpret_cast<const char*>(units.data()), trie_bytes) + strings;
}

}  // namespace lora_train::testing_support
