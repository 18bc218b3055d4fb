// The merge loop of byte-pair encoding and the places where it can be cut, shared by byte-level BPE, SentencePiece-style BPE and
// SentencePiece models.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "valid_utf8.h"

namespace lora_train::tokenizer {

/// A piece of a word under way: a token id and the bytes it covers.
struct Symbol {
  std::int32_t id;
  std::uint32_t length;
};

struct Merge {
  std::uint32_t rank;  ///< lower merges first; equal ranks merge from the left
  std::int32_t id;     ///< of the merged token
};

/// Pair of ids -> merge. Open addressing, linear probing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(std::size_t expected_merges = 0);
  /// A pair given twice keeps the last merge.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  /// Null when the pair does not merge. Negative ids never do.
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
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // the pair (-1, -1), which add() is never given
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

/// Merges the symbols in place until no neighbouring pair has a merge: always the lowest rank, then the leftmost.
void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols);

/// Which neighbouring characters stand side by side in some token. Between others no merge can ever reach across, so
/// byte-pair encoding of the parts gives the tokens of the whole. May say that two characters join when they do not.
/// Thread-safe for concurrent const calls.
class CutTable {
 public:
  /// `spaces_are_u2581`: the text has spaces where tokens have U+2581.
  explicit CutTable(bool spaces_are_u2581 = false) : spaces_are_u2581_(spaces_are_u2581) {}

  /// A token that merging can make: UTF-8 that may begin and end inside a character.
  void add(std::string_view token);
  /// To be called once, after the last add().
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
  std::bitset<256 * 256> byte_pairs_;  // last byte, first byte: where a token holds a part of a character
  std::vector<std::uint64_t> found_;   // pairs until build()
  std::vector<std::uint64_t> pairs_;   // bits by hash
  unsigned shift_ = 0;
};

}  // namespace lora_train::tokenizer
