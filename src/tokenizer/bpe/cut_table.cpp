#include "cut_table.h"

#include <algorithm>
#include <bit>

namespace lora_train::tokenizer {
namespace {

constexpr std::uint32_t kMetaspace = 0x2581;
constexpr std::size_t kBitsPerPair = 8;  // one in eight foreign pairs is taken for a known one

// The whole character that ends right before `end`, or length 0.
Utf8Char char_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && is_continuation(text[begin])) --begin;
  const Utf8Char c = utf8_char(text, begin);
  return begin + c.length == end ? c : Utf8Char{};
}

}  // namespace

void CutTable::join(std::uint32_t left, std::uint32_t right) {
  if ((left | right) < 0x80) ascii_pairs_.set(left << 7U | right);
  found_.push_back(std::uint64_t{left} << 32U | right);
}

void CutTable::add(std::string_view token) {
  for (std::size_t at = 1; at < token.size(); ++at) {
    if (is_continuation(token[at])) continue;
    const Utf8Char left = char_before(token, at), right = utf8_char(token, at);
    if (left.length == 0 || right.length == 0) {
      byte_pairs_.set(byte_pair(token[at - 1], token[at]));
      continue;
    }
    join(left.code_point, right.code_point);
    if (!spaces_are_u2581_) continue;
    const std::uint32_t other_left = left.code_point == kMetaspace ? ' ' : left.code_point;
    const std::uint32_t other_right = right.code_point == kMetaspace ? ' ' : right.code_point;
    join(other_left, right.code_point);
    join(left.code_point, other_right);
    join(other_left, other_right);
  }
}

void CutTable::build() {
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  const std::size_t bits = std::bit_ceil(std::max<std::size_t>(kBitsPerPair * found_.size(), 64));
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(bits));
  pairs_.assign(bits / 64, 0);
  for (const std::uint64_t pair : found_) {
    const std::size_t bit = bit_of(static_cast<std::uint32_t>(pair >> 32U), static_cast<std::uint32_t>(pair));
    pairs_[bit >> 6U] |= std::uint64_t{1} << (bit & 63U);
  }
  found_ = {};
}

}  // namespace lora_train::tokenizer
