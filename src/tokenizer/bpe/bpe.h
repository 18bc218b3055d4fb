// The merge loop of byte-pair encoding and the safe places to cut text, shared by byte-level BPE, SentencePiece-style
// BPE and SentencePiece models. Also the cache of words.
#pragma once

#include <bitset>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"
#include "valid_utf8.h"

namespace lora_train::tokenizer {

/// A piece of a word being encoded: a token id and the bytes it covers.
struct Symbol {
  std::int32_t id;
  std::uint32_t length;
};

struct Merge {
  std::uint32_t rank;  ///< lower merges first; equal ranks merge from the left
  std::int32_t id;     ///< id of the merged token
};

/// Pair of ids -> merge. Open addressing, linear probing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(std::size_t expected_merges = 0);
  /// Adding a pair again replaces its merge.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  /// Null if the pair does not merge. Negative ids never do.
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = pair_key(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == kEmpty) return nullptr;
      if (slots_[slot].key == key) return &slots_[slot].merge;
    }
  }
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // the pair (-1, -1), which is never added
  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32U) | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
  }
  void rehash(std::size_t slots);

  std::vector<Slot> slots_;
  std::size_t size_ = 0, mask_ = 0;
  unsigned shift_ = 0;
};

/// Merges the symbols in place until no adjacent pair has a merge: always the lowest rank, then the leftmost.
void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols);

/// Records which characters are adjacent in some token. No merge can cross between any others, so byte-pair encoding of
/// the parts gives the tokens of the whole. May report that two characters join when they do not. Thread-safe for
/// concurrent const calls.
class CutTable {
 public:
  /// `spaces_are_u2581`: the text has spaces in place of the tokens' U+2581.
  explicit CutTable(bool spaces_are_u2581 = false) : spaces_are_u2581_(spaces_are_u2581) {}

  /// Adds a token that merging can make: UTF-8 that may begin and end inside a character.
  void add(std::string_view token);
  /// Call once, after the last add().
  void build();

  /// The end of the part that begins at `at` < text.size(). `text` is valid UTF-8.
  std::size_t part_end(std::string_view text, std::size_t at) const {
    Utf8Char left = valid_utf8_char(text, at);
    for (at += left.length; at < text.size();) {
      const Utf8Char right = valid_utf8_char(text, at);
      if (!may_join(left.code_point, right.code_point, text[at - 1], text[at])) return at;
      at += right.length;
      left = right;
    }
    return at;
  }

 private:
  bool may_join(std::uint32_t left, std::uint32_t right, char left_byte, char right_byte) const {
    if ((left | right) < 0x80) return ascii_pairs_[left << 7U | right];
    const std::size_t bit = bit_of(left, right);
    return (pairs_[bit >> 6U] >> (bit & 63U) & 1U) != 0 || byte_pairs_[byte_pair(left_byte, right_byte)];
  }
  static std::size_t byte_pair(char left, char right) {
    return std::size_t{static_cast<unsigned char>(left)} << 8U | static_cast<unsigned char>(right);
  }
  std::size_t bit_of(std::uint32_t left, std::uint32_t right) const {
    return static_cast<std::size_t>((std::uint64_t{left} << 32U | right) * 0x9E3779B97F4A7C15ULL >> shift_);
  }
  void join(std::uint32_t left, std::uint32_t right);

  bool spaces_are_u2581_;
  std::bitset<128 * 128> ascii_pairs_;
  std::bitset<256 * 256> byte_pairs_;  // last byte, first byte: where a token contains part of a character
  std::vector<std::uint64_t> found_;   // pairs until build()
  std::vector<std::uint64_t> pairs_;   // bits by hash
  unsigned shift_ = 0;
};

/// Word -> symbols, for one tokenizer. Direct-mapped: a new word replaces an old one. Short words share a cache line
/// with their symbols; the others are in arenas, which are cleared when full. Not thread-safe: one per thread.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 64;  ///< longer words rarely repeat

  WordCache();
  /// Empty if the word is unknown. Valid until the next insert. `word` has 1 to kMaxWordBytes bytes.
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

// Reads overlapping halves, so it touches no byte outside the word.
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

/// The range of complete characters around text[begin, end).
inline ByteRange whole_characters(std::string_view text, std::size_t begin, std::size_t end) {
  while (begin > 0 && is_continuation(text[begin])) --begin;
  while (end < text.size() && is_continuation(text[end])) ++end;
  return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
}

}  // namespace lora_train::tokenizer
