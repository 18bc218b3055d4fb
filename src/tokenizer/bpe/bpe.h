// The merge loop of byte-pair encoding, shared by byte-level BPE, SentencePiece-style BPE and SentencePiece models.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace lora_train::tokenizer
