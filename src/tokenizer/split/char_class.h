// Character classes of the split patterns, as a table.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lora_train::tokenizer {

enum class CharClass : std::uint8_t {
  kOther,
  kLetter,   ///< \p{L}
  kNumber,   ///< \p{N}
  kSpace,    ///< White_Space other than the next
  kNewline,  ///< \r and \n
};

/// The class of every code point, filled from PCRE2's own tables so that the table and the patterns cannot disagree.
class CharClasses {
 public:
  /// Built on first use (about 2 ms). Thread-safe.
  static const CharClasses& instance();

  CharClass of(std::uint32_t code) const {
    const std::size_t block = code >> kBlockBits;
    return block < kBlocks ? table_[std::size_t{block_of_[block]} << kBlockBits | (code & (kBlockSize - 1))]
                           : CharClass::kOther;
  }

 private:
  CharClasses();

  static constexpr unsigned kBlockBits = 7;
  static constexpr std::uint32_t kBlockSize = 1U << kBlockBits;
  static constexpr std::uint32_t kEnd = 0x40000;  // no letters, numbers or spaces beyond plane 3
  static constexpr std::size_t kBlocks = kEnd >> kBlockBits;

  std::array<std::uint16_t, kBlocks> block_of_{};  // blocks that are equal share their place in the table
  std::vector<CharClass> table_;
};

}  // namespace lora_train::tokenizer
