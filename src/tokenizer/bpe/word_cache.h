// Caches the encoding of words, since ordinary text repeats its words.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpe.h"

namespace lora_train::tokenizer {

/// Word -> symbols, of one tokenizer. Direct-mapped: a new word takes the place of an old one. Short words stand with
/// their symbols in one cache line each; the others in arenas, which are emptied when they are full.
/// Not thread-safe: one per thread.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 64;  ///< longer words hardly repeat

  WordCache();
  /// Empty when it is not known. Valid until the next insert. `word` has 1 to kMaxWordBytes bytes.
  std::span<const Symbol> find(std::string_view word) const {
    if (word.size() > kMaxShortBytes) return find_long(word);
    const ShortKey key = short_key(word);
    const ShortSlot& slot = short_slots_[slot_of(key)];
    if (slot.key.low == key.low && slot.key.high == key.high) return {slot.symbols, slot.num_symbols};
    return find_long(word);
  }
  void insert(std::string_view word, std::span<const Symbol> symbols);

  /// This thread's cache for the tokenizer with this serial number.
  static WordCache& of_thread(std::uint64_t serial);
  static std::uint64_t next_serial();

 private:
  static constexpr std::size_t kMaxShortBytes = 15;
  static constexpr std::size_t kMaxShortSymbols = 5;
  static constexpr unsigned kShortSlotBits = 14;

  struct ShortKey {
    std::uint64_t low = 0, high = 0;  // the bytes of the word, zeros, and its length in the last byte
  };
  struct alignas(64) ShortSlot {
    ShortKey key;
    std::uint32_t num_symbols = 0;
    Symbol symbols[kMaxShortSymbols] = {};
  };
  struct LongSlot {
    std::uint64_t hash = 0;
    std::uint32_t word_at = 0, word_length = 0, symbols_at = 0, num_symbols = 0;
  };

  static ShortKey short_key(std::string_view word);
  static std::size_t slot_of(const ShortKey& key) {
    const std::uint64_t mixed = (key.low ^ (key.high * 0xC2B2AE3D27D4EB4FULL)) * 0x9E3779B97F4A7C15ULL;
    return static_cast<std::size_t>((mixed ^ mixed >> 29U) * 0xBF58476D1CE4E5B9ULL >> (64U - kShortSlotBits));
  }
  std::span<const Symbol> find_long(std::string_view word) const;

  std::vector<ShortSlot> short_slots_;
  std::vector<LongSlot> long_slots_;
  std::string words_;
  std::vector<Symbol> symbols_;
};

// Reads overlapping halves, so that no byte outside the word is touched.
inline WordCache::ShortKey WordCache::short_key(std::string_view word) {
  const std::size_t size = word.size();
  const char* bytes = word.data();
  ShortKey key;
  if (size >= 8) {
    std::memcpy(&key.low, bytes, 8);
    std::memcpy(&key.high, bytes + size - 8, 8);
    key.high = key.high >> 1U >> (8 * (16 - size) - 1);
  } else if (size >= 4) {
    std::uint32_t first, last;
    std::memcpy(&first, bytes, 4);
    std::memcpy(&last, bytes + size - 4, 4);
    key.low = first | std::uint64_t{last} << (8 * (size - 4));
  } else {
    for (std::size_t i = 0; i < size; ++i) {
      key.low |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
  }
  key.high |= std::uint64_t{size} << 56U;
  return key;
}

}  // namespace lora_train::tokenizer
