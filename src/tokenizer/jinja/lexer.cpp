#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "jinja.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Line ends become line feeds, and one at the very end is dropped (keep_trailing_newline is off).
std::string normalize_newlines(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name) : source_(std::move(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      lex_text();
      if (at_ < source_.size()) lex_tag();
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(fmt::format("{}:{}", name_, line_), "chat template: " + message);
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  bool starts(std::string_view what) const { return source_.compare(at_, what.size(), what) == 0; }

  // Text up to the next tag, trimmed as the surrounding tags request.
  void lex_text() {
    std::size_t end = source_.find('{', at_);
    while (end != std::string::npos && std::string_view("{%#").find(source_[end + 1]) == std::string_view::npos)
      end = source_.find('{', end + 1);
    end = std::min(end, source_.size());
    const std::size_t stop = text_end(end);
    if (stop > at_) add(TokenKind::kText, source_.substr(at_, stop - at_));
    advance(end);
  }

  // End of the text before the tag at `tag`: "-" strips all white space; lstrip_blocks strips the blanks before a block
  // tag or comment that is first on its line.
  std::size_t text_end(std::size_t tag) const {
    if (tag + 2 >= source_.size()) return tag;
    const char control = source_[tag + 2];
    if (control == '-') return space_before(tag, at_);
    if (source_[tag + 1] == '{' || control == '+') return tag;
    const std::size_t line_feed = std::string_view(source_).substr(at_, tag - at_).rfind('\n');
    const bool has_line = line_feed != std::string_view::npos || at_ == 0 || source_[at_ - 1] == '\n';
    const std::size_t line = line_feed == std::string_view::npos ? at_ : at_ + line_feed + 1;
    const std::size_t begin = space_before(tag, line);
    return has_line && begin == line ? begin : tag;
  }

  // The start of the white space that ends at `end`, and the end of that which begins at `at`. Python's \s.
  std::size_t space_before(std::size_t end, std::size_t limit) const {
    while (end > limit) {
      const std::size_t begin = char_begin_before(source_, end);
      if (!is_space(utf8_char(source_, begin).code_point)) break;
      end = begin;
    }
    return end;
  }
  std::size_t space_after(std::size_t at) const {
    while (at < source_.size()) {
      const Utf8Char c = utf8_char(source_, at);
      if (!is_space(c.code_point)) break;
      at += c.length;
    }
    return at;
  }

  void lex_tag() {
    const char kind = source_[at_ + 1];
    if (kind == '#') return lex_comment();
    const bool is_block = kind == '%';
    if (is_block && lex_raw()) return;
    add(is_block ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    advance(at_ + 2);
    if (starts("-") || starts("+")) advance(at_ + 1);
    lex_words(is_block ? "%}" : "}}");
    add(is_block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "");
    end_tag(is_block);
  }

  void lex_comment() {
    advance(at_ + 2);
    if (starts("-") || starts("+")) advance(at_ + 1);
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment is not closed");
    minus_ = end > at_ && source_[end - 1] == '-';
    plus_ = end > at_ && source_[end - 1] == '+';
    advance(end);
    end_tag(true);
  }

  // After the "}" pair: "-" strips all white space, and trim_blocks one line feed after a block.
  void end_tag(bool is_block) {
    advance(at_ + 2);
    if (minus_) {
      advance(space_after(at_));
    } else if (is_block && !plus_ && at_ < source_.size() && source_[at_] == '\n') {
      advance(at_ + 1);
    }
    minus_ = plus_ = false;
  }

  // The end of {%, optional sign, word, at `tag`; npos if something else is there.
  std::size_t tag_word_end(std::size_t tag, std::string_view word) const {
    std::size_t at = tag + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = space_after(at);
    if (source_.compare(at, word.size(), word) != 0) return std::string::npos;
    return space_after(at + word.size());
  }

  // {% raw %} ... {% endraw %}: literal text. A line feed after {% raw %} stays, as in Jinja.
  bool lex_raw() {
    const std::size_t close = tag_word_end(at_, "raw");
    if (close == std::string::npos) return false;
    const bool minus = source_.compare(close, 3, "-%}") == 0;
    if (!minus && source_.compare(close, 2, "%}") != 0) return false;
    advance(minus ? space_after(close + 3) : close + 2);
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      std::size_t end = tag_word_end(tag, "endraw");
      if (end == std::string::npos) continue;
      minus_ = source_.compare(end, 1, "-") == 0;
      plus_ = source_.compare(end, 1, "+") == 0;
      if (minus_ || plus_) ++end;
      if (source_.compare(end, 2, "%}") != 0) continue;
      const std::size_t stop = text_end(tag);
      if (stop > at_) add(TokenKind::kText, source_.substr(at_, stop - at_));
      advance(end);
      end_tag(true);
      return true;
    }
    fail("{% raw %} is not closed by {% endraw %}");
  }

  void lex_words(std::string_view closing) {
    int brackets = 0;
    for (;;) {
      advance(space_after(at_));
      if (at_ >= source_.size()) fail("a tag is not closed");
      const bool has_sign = starts("-") || (starts("+") && closing == "%}");
      if (brackets == 0 && has_sign && source_.compare(at_ + 1, 2, closing) == 0) {
        (source_[at_] == '-' ? minus_ : plus_) = true;
        advance(at_ + 1);
        return;
      }
      if (brackets == 0 && starts(closing)) return;
      lex_word(brackets);
    }
  }

  void lex_word(int& brackets) {
    const char c = source_[at_];
    if (is_name_start(c)) return lex_name();
    if (is_digit(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string(c);
    for (const char* two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (!starts(two)) continue;
      add(TokenKind::kOperator, two);
      return advance(at_ + 2);
    }
    if (std::string_view("+-*/%~()[]{}<>=.:|,").find(c) == std::string_view::npos) {
      fail(fmt::format("unexpected character '{}'",
                       source_.substr(at_, std::max<std::size_t>(utf8_char(source_, at_).length, 1))));
    }
    if (c == '(' || c == '[' || c == '{') ++brackets;
    if (c == ')' || c == ']' || c == '}') --brackets;
    if (brackets < 0) fail(fmt::format("unexpected '{}'", c));
    add(TokenKind::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  void lex_name() {
    std::size_t end = at_;
    while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenKind::kName, source_.substr(at_, end - at_));
    advance(end);
  }

  // End of the digits from `at`, with single underscores between them.
  std::size_t digits_end(std::size_t at) const {
    while (at < source_.size() && is_digit(source_[at])) {
      ++at;
      if (at + 1 < source_.size() && source_[at] == '_' && is_digit(source_[at + 1])) ++at;
    }
    return at;
  }

  void lex_number() {
    std::size_t end = digits_end(at_);
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.1.2 is two positions
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      real = true;
      end = digits_end(end + 1);
    }
    if (end + 1 < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t sign = source_[end + 1] == '+' || source_[end + 1] == '-' ? 1 : 0;
      const std::size_t exponent_end = digits_end(end + 1 + sign);
      if (exponent_end > end + 1 + sign) {
        real = true;
        end = exponent_end;
      }
    }
    std::string number = source_.substr(at_, end - at_);
    std::erase(number, '_');
    if (!real && number.size() > 1 && number.find_first_not_of('0') != std::string::npos && number[0] == '0')
      fail("an integer with leading zeros");
    add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(number));
    advance(end);
  }

  void lex_string(char quote) {
    const int line = line_;
    std::string text;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 >= source_.size())
        text += source_[i];
      else
        i = unescape(i + 1, text);
    }
    if (i >= source_.size()) fail("a string is not closed");
    advance(i + 1);
    tokens_.push_back({TokenKind::kString, std::move(text), line});
  }

  // Decodes the escape whose letter is at i; returns the position of its last character. Unknown escapes stay, as in
  // Python.
  std::size_t unescape(std::size_t i, std::string& text) const {
    const char c = source_[i];
    static const std::string_view letters = "nrtabfv\\'\"", meanings = "\n\r\t\a\b\f\v\\'\"";
    if (const std::size_t known = letters.find(c); known != std::string_view::npos) {
      text += meanings[known];
      return i;
    }
    if (c == '\n') return i;
    if (c == 'N' || (c >= '0' && c <= '7')) fail(fmt::format("the escape \\{} in a string is not supported", c));
    const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (length == 0) {
      (text += '\\') += c;
      return i;
    }
    std::uint32_t code = 0;
    const std::string digits = source_.substr(i + 1, length);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const bool is_whole = digits.size() == length && parsed.ptr == digits.data() + length;
    if (!is_whole || code >= 0x110000 || (code >= 0xD800 && code <= 0xDFFF)) fail("a malformed escape in a string");
    append_utf8(text, code);
    return i + length;
  }

  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool minus_ = false, plus_ = false;  // for the tag being closed
};

}  // namespace

TokenReader::TokenReader(std::string_view source, const std::string& name) : name_(name) {
  if (const auto at = find_invalid_utf8(source)) {
    throw FormatError(fmt::format("{}: byte {}", name, *at), "the chat template is not valid UTF-8");
  }
  tokens_ = Lexer(normalize_newlines(source), name).run();
}

Value TokenReader::take_integer() {
  const auto value = whole_number<std::int64_t>(now().text);
  if (!value) fail("integer too large: " + now().text);
  take();
  return *value;
}

Value TokenReader::take_float() {
  const std::string text = take().text;
  const double value = std::strtod(text.c_str(), nullptr);
  if (std::isinf(value)) fail(fmt::format("the float {} is too large, infinity is not supported", text));
  return value;
}

}  // namespace lora_train::tokenizer::jinja
