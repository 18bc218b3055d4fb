#include "char_class.h"

#include <map>
#include <string>

#include "bpe/valid_utf8.h"
#include "lora_train/base/utf8.h"
#include "regex.h"

namespace lora_train::tokenizer {
namespace {

bool is_surrogate(std::uint32_t code) { return code >= 0xD800 && code <= 0xDFFF; }

// Gives the characters of `all` that the pattern matches their class.
void mark(const std::string& all, const char* pattern, CharClass as, std::vector<CharClass>& classes) {
  const Regex regex(pattern, "character classes");
  Regex::Scan scan(regex, all);
  for (std::size_t from = 0, begin = 0, end = 0; from < all.size() && scan.next(from, begin, end); from = end) {
    for (std::size_t at = begin; at < end;) {
      const Utf8Char c = valid_utf8_char(all, at);
      classes[c.code_point] = as;
      at += c.length;
    }
  }
}

}  // namespace

const CharClasses& CharClasses::instance() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() {
  std::string all;
  for (std::uint32_t code = 0; code < kEnd; ++code) {
    if (!is_surrogate(code)) append_utf8(all, code);
  }
  std::vector<CharClass> classes(kEnd, CharClass::kOther);
  mark(all, "\\p{L}+", CharClass::kLetter, classes);
  mark(all, "\\p{N}+", CharClass::kNumber, classes);
  mark(all, "\\s+", CharClass::kSpace, classes);
  classes['\r'] = classes['\n'] = CharClass::kNewline;

  std::map<std::vector<CharClass>, std::uint16_t> known;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const auto begin = classes.begin() + static_cast<std::ptrdiff_t>(block * kBlockSize);
    const std::vector<CharClass> content(begin, begin + kBlockSize);
    const auto [entry, is_new] = known.emplace(content, static_cast<std::uint16_t>(known.size()));
    if (is_new) table_.insert(table_.end(), content.begin(), content.end());
    block_of_[block] = entry->second;
  }
}

}  // namespace lora_train::tokenizer
