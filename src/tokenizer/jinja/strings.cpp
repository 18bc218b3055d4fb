#include <utf8proc.h>

#include <algorithm>

#include "builtins.h"

namespace lora_train::tokenizer::jinja {
namespace {

// Word separators of the filter title.
bool parts_words(std::uint32_t code) {
  return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
}

struct Word {
  std::size_t begin, end;
};

std::vector<Word> words_of(const std::string& text) {
  spend_bytes(8 * text.size());
  std::vector<Word> words;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    const std::size_t end = at + std::max<std::size_t>(c.length, 1);
    if (is_space(c.code_point)) {
      in_word = false;
    } else if (in_word) {
      words.back().end = end;
    } else {
      words.push_back({at, end});
      in_word = true;
    }
    at = end;
  }
  return words;
}

std::uint32_t mapped(utf8proc_int32_t (*map)(utf8proc_int32_t), std::uint32_t code) {
  return static_cast<std::uint32_t>(map(static_cast<utf8proc_int32_t>(code)));
}

// The characters of the full case folding if there are several, else empty. Characters with several in upper case
// (Unicode's SpecialCasing.txt, as in Python's str.upper and str.title) are those that fold to several.
std::u32string folded_to_several(std::uint32_t code) {
  constexpr std::uint32_t kDottedI = 0x0130, kCapitalSharpS = 0x1E9E;  // their own upper case
  utf8proc_int32_t folded[8];
  int last = 0;
  const auto length = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 8, UTF8PROC_CASEFOLD, &last);
  if (length < 2 || code == kDottedI || code == kCapitalSharpS) return {};
  return {folded, folded + length};
}

// Unicode's Case_Ignorable: characters allowed between a sigma and the letters around it.
bool is_case_ignorable(std::uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
  }
  static const std::u32string_view others =
      U"\'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  return others.find(static_cast<char32_t>(code)) != std::u32string_view::npos;
}

void append_upper(std::string& out, std::uint32_t code) {
  const std::u32string several = folded_to_several(code);
  if (several.empty()) append_utf8(out, mapped(utf8proc_toupper, code));
  for (const char32_t part : several) append_utf8(out, mapped(utf8proc_toupper, part));
}

void append_title(std::string& out, std::uint32_t code) {
  constexpr std::uint32_t kSharpS = 0x00DF, kApostropheN = 0x0149, kIota = 0x03B9, kIotaBelow = 0x0345;
  if (code == kApostropheN) return append_upper(out, code);
  const std::u32string several = folded_to_several(code);
  const std::uint32_t title = mapped(utf8proc_totitle, code);
  const bool is_title = utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_LT;
  // utf8proc has a capital for the sharp s that Unicode's title case lacks.
  if (several.empty() || is_title || (title != code && code != kSharpS)) return append_utf8(out, title);
  append_utf8(out, mapped(utf8proc_totitle, several.front()));
  for (std::size_t i = 1; i < several.size(); ++i) {
    const bool is_last = i + 1 == several.size();
    append_utf8(out, several[i] == kIota && is_last ? kIotaBelow : several[i]);
  }
}

/// True if the character has a case.
bool is_cased(std::uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT: return true;
    default:
      return mapped(utf8proc_toupper, code) != code || mapped(utf8proc_tolower, code) != code || code == 0xAA ||
             code == 0xBA || (code >= 0x02B0 && code <= 0x02B8);
  }
}

/// Lower case has one context rule: a sigma at the end of a word.
class CaseMapper {
 public:
  explicit CaseMapper(const std::string& text) : text_(text) {}

  /// Appends the lower case of the character at byte `at`, which is `code`.
  void append_lower(std::string& out, std::size_t at, std::uint32_t code) const {
    constexpr std::uint32_t kSigma = 0x03A3, kFinalSigma = 0x03C2, kDottedI = 0x0130;
    if (code == kDottedI)
      out += "i\xCC\x87";
    else if (code == kSigma && is_final_sigma(at))
      append_utf8(out, kFinalSigma);
    else
      append_utf8(out, mapped(utf8proc_tolower, code));
  }

 private:
  bool is_final_sigma(std::size_t at) const {
    std::size_t before = at;
    while (before > 0) {
      before = char_begin_before(text_, before);
      const std::uint32_t code = utf8_char(text_, before).code_point;
      if (is_case_ignorable(code)) continue;
      if (!is_cased(code)) return false;
      break;
    }
    if (before == at || is_case_ignorable(utf8_char(text_, before).code_point)) return false;
    for (std::size_t after = at + 2; after < text_.size();) {
      const Utf8Char c = utf8_char(text_, after);
      if (!is_case_ignorable(c.code_point)) return !is_cased(c.code_point);
      after += std::max<std::size_t>(c.length, 1);
    }
    return true;
  }

  const std::string& text_;
};

}  // namespace

bool is_space(std::uint32_t code) {
  if ((code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

void spend_search(std::size_t text_size, std::size_t needle_size) {
  // Both are at most 16 MiB, so the product fits.
  spend_bytes(text_size * (1 + needle_size / 64));
}

Text strip(const Text& text, const std::optional<std::string>& chars, bool left, bool right) {
  const std::string& bytes = text.bytes();
  const auto goes = [&](std::size_t at) {
    const Utf8Char c = utf8_char(bytes, at);
    if (!chars) return is_space(c.code_point);
    spend_bytes(chars->size());
    return chars->find(bytes.substr(at, std::max<std::size_t>(c.length, 1))) != std::string::npos;
  };
  std::size_t begin = 0, end = bytes.size();
  while (left && begin < end && goes(begin)) begin += std::max<std::size_t>(utf8_char(bytes, begin).length, 1);
  while (right && end > begin && goes(char_begin_before(bytes, end))) end = char_begin_before(bytes, end);
  return text.slice(begin, end);
}

List split_by(const Text& text, const std::string& separator, std::int64_t limit, bool from_right) {
  const std::string& bytes = text.bytes();
  List out;
  spend_search(bytes.size(), separator.size());
  if (from_right) {
    std::size_t end = bytes.size();
    while (limit != 0 && end >= separator.size()) {
      const std::size_t at = bytes.rfind(separator, end - separator.size());
      if (at == std::string::npos) break;
      out.push_back(text.slice(at + separator.size(), end));
      end = at;
      --limit;
    }
    out.push_back(text.slice(0, end));
    std::reverse(out.begin(), out.end());
    return out;
  }
  std::size_t begin = 0;
  for (std::size_t at; limit != 0 && (at = bytes.find(separator, begin)) != std::string::npos; --limit) {
    out.push_back(text.slice(begin, at));
    begin = at + separator.size();
  }
  out.push_back(text.slice(begin, bytes.size()));
  return out;
}

List split_by_space(const Text& text, std::int64_t limit, bool from_right) {
  const std::vector<Word> words = words_of(text.bytes());
  const std::size_t cuts = limit < 0 ? words.size() : static_cast<std::size_t>(limit);
  List out;
  if (words.size() <= cuts) {
    for (const Word& word : words) out.push_back(text.slice(word.begin, word.end));
    return out;
  }
  if (from_right) {
    const std::size_t kept = words.size() - cuts;
    out.push_back(text.slice(0, words[kept - 1].end));
    for (std::size_t i = kept; i < words.size(); ++i) out.push_back(text.slice(words[i].begin, words[i].end));
    return out;
  }
  for (std::size_t i = 0; i < cuts; ++i) out.push_back(text.slice(words[i].begin, words[i].end));
  out.push_back(text.slice(words[cuts].begin, text.size()));
  return out;
}

List split_lines(const Text& text, bool keep_ends) {
  const std::string& bytes = text.bytes();
  List out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Char c = utf8_char(bytes, at);
    const std::size_t content_end = at;
    at += std::max<std::size_t>(c.length, 1);
    const bool is_end = (c.code_point >= 0x0A && c.code_point <= 0x0D) ||
                        (c.code_point >= 0x1C && c.code_point <= 0x1E) || c.code_point == 0x85 ||
                        c.code_point == 0x2028 || c.code_point == 0x2029;
    if (!is_end) continue;
    if (c.code_point == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    out.push_back(text.slice(begin, keep_ends ? at : content_end));
    begin = at;
  }
  if (begin < bytes.size()) out.push_back(text.slice(begin, bytes.size()));
  return out;
}

Text change_case(const Text& text, Case to) {
  Text out;
  spend_bytes(4 * text.size());
  const CaseMapper mapper(text.bytes());
  bool begins = true;  // start of a word, or of the text
  std::size_t at = 0;
  for (const Text::Run& run : text.runs()) {
    std::string part;
    while (at < run.end) {
      const Utf8Char c = utf8_char(text.bytes(), at);
      const bool up = to == Case::kUpper || (to != Case::kLower && begins);
      if (!up)
        mapper.append_lower(part, at, c.code_point);
      else if (to == Case::kUpper || to == Case::kWordBegins)
        append_upper(part, c.code_point);
      else
        append_title(part, c.code_point);
      begins =
          (to == Case::kTitle && !is_cased(c.code_point)) || (to == Case::kWordBegins && parts_words(c.code_point));
      at += std::max<std::size_t>(c.length, 1);
    }
    out.append(part, run.origin);
  }
  return out;
}

Text replace(const Text& text, const std::string& old, const Text& with, std::int64_t limit) {
  Text out;
  std::size_t begin = 0;
  spend_search(text.size(), old.size());
  if (old.empty()) {  // between all characters
    const auto positions = char_positions(text.bytes());
    for (std::size_t i = 0; i < positions.size() && limit != 0; ++i, --limit) {
      out.append(text, begin, positions[i]);
      out.append(with);
      begin = positions[i];
    }
  }
  for (std::size_t at; !old.empty() && limit != 0 && (at = text.bytes().find(old, begin)) != std::string::npos;
       --limit) {
    out.append(text, begin, at);
    out.append(with);
    begin = at + old.size();
  }
  out.append(text, begin, text.size());
  return out;
}

Text join_texts(const List& items, const Text& separator) {
  Text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(items[i].str());
  }
  return out;
}

std::size_t count_of(const std::string& text, const std::string& needle) {
  spend_search(text.size(), needle.size());
  if (needle.empty()) return char_positions(text).size();
  std::size_t count = 0;
  for (std::size_t at = text.find(needle); at != std::string::npos; at = text.find(needle, at + needle.size())) ++count;
  return count;
}

}  // namespace lora_train::tokenizer::jinja
