#include "gpt_split.h"

#include <array>
#include <map>
#include <string>

#include "bpe/valid_utf8.h"
#include "lora_train/base/utf8.h"
#include "regex.h"

namespace lora_train::tokenizer {
namespace {

bool is_surrogate(std::uint32_t code) { return code >= 0xD800 && code <= 0xDFFF; }

// Sets the class of the characters in `all` that the pattern matches.
void mark(const std::string& all, const char* pattern, CharClass as, std::vector<CharClass>& classes) {
  std::vector<Stretch> stretches;
  Regex(pattern, "character classes").split(all, stretches);
  for (const Stretch& stretch : stretches) {
    for (std::size_t at = stretch.begin; stretch.is_match && at < stretch.end;) {
      const Utf8Char c = valid_utf8_char(all, at);
      classes[c.code_point] = as;
      at += c.length;
    }
  }
}

struct Known {
  std::string_view pattern;
  int max_digits;
  CharClass marks = CharClass::kOther;
};

constexpr Known kKnown[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     1},  // Qwen2, Qwen2.5, Qwen3
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     3},  // Llama 3
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     1, CharClass::kLetter},  // Qwen3.5
};

// Classes of ASCII, so that ordinary text reads one byte and one table entry per character.
constexpr std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> classes{};
  for (std::size_t c = 0; c < 128; ++c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool is_number = c >= '0' && c <= '9';
    const bool is_newline = c == '\r' || c == '\n';
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    classes[c] = is_letter    ? CharClass::kLetter
                 : is_number  ? CharClass::kNumber
                 : is_newline ? CharClass::kNewline
                 : is_space   ? CharClass::kSpace
                              : CharClass::kOther;
  }
  return classes;
}
constexpr std::array<CharClass, 128> kAscii = ascii_classes();

constexpr std::string_view kLongS = "\xC5\xBF";  // U+017F, whose capital is S

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

// The end of a contraction whose apostrophe is at `at`, or `at`.
std::size_t contraction_end(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return at;
  if (rest == kLongS) return at + 3;
  const char first = lower(rest[0]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (rest.size() < 2) return at;
  const char second = lower(rest[1]);
  const bool is_pair =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return is_pair ? at + 3 : at;
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
  mark(all, "\\p{M}+", CharClass::kMark, classes);
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

std::optional<GptSplit> GptSplit::recognise(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (pattern == known.pattern) return GptSplit(known.max_digits, known.marks);
  }
  return std::nullopt;
}

GptSplit::Char GptSplit::char_at(std::string_view text, std::size_t at) const {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {kAscii[byte], 1};
  const Utf8Char c = valid_utf8_char(text, at);
  const CharClass cls = classes_->of(c.code_point);
  return {cls == CharClass::kMark ? marks_ : cls, c.length};
}

std::size_t GptSplit::skip(CharClass cls, std::string_view text, std::size_t at) const {
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (c.cls != cls) break;
    at += c.length;
  }
  return at;
}

std::size_t GptSplit::skip_digits(std::string_view text, std::size_t at) const {
  for (int taken = 0; taken < max_digits_ && at < text.size(); ++taken) {
    const Char c = char_at(text, at);
    if (c.cls != CharClass::kNumber) break;
    at += c.length;
  }
  return at;
}

// [^\s\p{L}\p{N}]+[\r\n]*
std::size_t GptSplit::symbols_end(std::string_view text, std::size_t at) const {
  return skip(CharClass::kNewline, text, skip(CharClass::kOther, text, at));
}

// \s*[\r\n]+|\s+(?!\S)|\s+
std::size_t GptSplit::white_space_end(std::string_view text, std::size_t at) const {
  std::size_t end = at, last = at, newlines_end = at;
  while (end < text.size()) {
    const Char c = char_at(text, end);
    if (c.cls != CharClass::kSpace && c.cls != CharClass::kNewline) break;
    last = end;
    end += c.length;
    if (c.cls == CharClass::kNewline) newlines_end = end;
  }
  if (newlines_end > at) return newlines_end;
  // Before text, the last white space belongs to what follows.
  return end == text.size() || last == at ? end : last;
}

std::size_t GptSplit::piece_end(std::string_view text, std::size_t at) const {
  const Char first = char_at(text, at);
  const std::size_t next = at + first.length;
  if (first.cls == CharClass::kLetter) return skip(CharClass::kLetter, text, next);
  if (first.cls == CharClass::kNumber) return skip_digits(text, at);
  if (first.cls == CharClass::kNewline) return white_space_end(text, at);
  if (text[at] == '\'') {
    if (const std::size_t end = contraction_end(text, at); end > at) return end;
  }
  const Char second = next < text.size() ? char_at(text, next) : Char{CharClass::kNewline, 0};
  if (second.cls == CharClass::kLetter) return skip(CharClass::kLetter, text, next + second.length);
  if (first.cls == CharClass::kOther) return symbols_end(text, at);
  if (text[at] == ' ' && second.cls == CharClass::kOther) return symbols_end(text, next);
  return white_space_end(text, at);
}

}  // namespace lora_train::tokenizer
