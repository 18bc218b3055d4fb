// Remembers what pieces of text encode to: ordinary text repeats its words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpe.h"

namespace lora_train::tokenizer {

/// Piece -> symbols, of one tokenizer. Direct-mapped; emptied when its arenas are full. Not thread-safe: one per
/// thread.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 64;  ///< longer pieces hardly repeat

  WordCache();
  /// Null data when it is not known. Valid until the next insert.
  std::span<const Symbol> find(std::string_view word, std::uint64_t hash) const;
  void insert(std::string_view word, std::uint64_t hash, std::span<const Symbol> symbols);

  /// This thread's cache for the tokenizer with this serial number.
  static WordCache& of_thread(std::uint64_t serial);
  static std::uint64_t next_serial();

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word_at = 0, word_length = 0, symbols_at = 0, num_symbols = 0;
  };
  std::vector<Slot> slots_;
  std::string words_;
  std::vector<Symbol> symbols_;
};

}  // namespace lora_train::tokenizer
