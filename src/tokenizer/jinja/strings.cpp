#include "strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "lora_train/base/utf8.h"
#include "builtins.h"

namespace lora_train::tokenizer::jinja {
namespace {

// str.isspace() of Python.
bool is_space(std::uint32_t code) {
  if ((code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

std::size_t char_before(const std::string& text, std::size_t at) {
  do --at;
  while (at > 0 && is_continuation(text[at]));
  return at;
}

struct Word {
  std::size_t begin, end;
};

std::vector<Word> words_of(const std::string& text) {
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

}  // namespace

Text strip(const Text& text, const std::optional<std::string>& chars, bool left, bool right) {
  const std::string& bytes = text.bytes();
  const auto goes = [&](std::size_t at) {
    const Utf8Char c = utf8_char(bytes, at);
    if (!chars) return is_space(c.code_point);
    return chars->find(bytes.substr(at, std::max<std::size_t>(c.length, 1))) != std::string::npos;
  };
  std::size_t begin = 0, end = bytes.size();
  while (left && begin < end && goes(begin)) begin += std::max<std::size_t>(utf8_char(bytes, begin).length, 1);
  while (right && end > begin && goes(char_before(bytes, end))) end = char_before(bytes, end);
  return text.slice(begin, end);
}

List split_by(const Text& text, const std::string& separator, std::int64_t limit, bool from_right) {
  const std::string& bytes = text.bytes();
  List out;
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
  if (words.size() <= cuts + 1 && limit >= 0 && words.size() <= cuts) limit = -1;
  if (limit < 0) {
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

List split_lines(const Text& text) {
  const std::string& bytes = text.bytes();
  List out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] != '\n' && bytes[at] != '\r') continue;
    out.push_back(text.slice(begin, at));
    if (bytes[at] == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') ++at;
    begin = at + 1;
  }
  if (begin < bytes.size()) out.push_back(text.slice(begin, bytes.size()));
  return out;
}

Text change_case(const Text& text, Case to) {
  std::string out;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text.bytes(), at);
    const auto code = static_cast<utf8proc_int32_t>(c.code_point);
    const bool up = to == Case::kUpper || (to != Case::kLower && !in_word);
    append_utf8(out, static_cast<std::uint32_t>(up ? utf8proc_toupper(code) : utf8proc_tolower(code)));
    const bool cased = utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
    in_word = to == Case::kCapitalize || (to == Case::kTitle && cased);
    at += std::max<std::size_t>(c.length, 1);
  }
  return out == text.bytes() ? text : Text(out, kTemplate);
}

Text replace(const Text& text, const std::string& old, const Value* replacement, std::int64_t limit) {
  if (replacement == nullptr || replacement->as_text() == nullptr) throw RenderError{"replace() takes strings"};
  if (old.empty()) throw RenderError{"replace() of an empty string is not built", true};
  const Text& with = *replacement->as_text();
  Text out;
  std::size_t begin = 0;
  for (std::size_t at; limit != 0 && (at = text.bytes().find(old, begin)) != std::string::npos; --limit) {
    out.append(text, begin, at);
    out.append(with);
    check_text_size(out.size());
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
    check_text_size(out.size());
  }
  return out;
}

std::size_t count_of(const std::string& text, const std::string& needle) {
  if (needle.empty()) return char_positions(text).size();
  std::size_t count = 0;
  for (std::size_t at = text.find(needle); at != std::string::npos; at = text.find(needle, at + needle.size())) ++count;
  return count;
}

}  // namespace lora_train::tokenizer::jinja
