#include "lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "lora_train/base/utf8.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Line ends become "\n", and one at the very end goes (keep_trailing_newline is off).
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
    throw FormatError(name_ + ":" + std::to_string(line_), "chat template: " + message);
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  bool starts(std::string_view what) const { return source_.compare(at_, what.size(), what) == 0; }

  // Text up to the next tag, trimmed by what the tags around it ask for.
  void lex_text() {
    std::size_t end = at_;
    while (end < source_.size()) {
      end = source_.find('{', end);
      if (end == std::string::npos) end = source_.size();
      if (end + 1 < source_.size() && std::string_view("{%#").find(source_[end + 1]) != std::string_view::npos) break;
      if (end < source_.size()) ++end;
    }
    const bool in_tag = end + 2 < source_.size();
    const char control = in_tag ? source_[end + 2] : '\0';
    std::size_t stop = end;
    if (control == '-') {
      while (stop > at_ && is_space(source_[stop - 1])) --stop;
    } else if (in_tag && source_[end + 1] != '{' && control != '+') {
      stop = strip_line_start(end);
    }
    if (stop > at_) add(TokenKind::kText, source_.substr(at_, stop - at_));
    advance(end);
  }

  // lstrip_blocks: the blanks before a block tag go when nothing else is before it on its line.
  std::size_t strip_line_start(std::size_t tag) const {
    std::size_t begin = tag;
    while (begin > at_ && (source_[begin - 1] == ' ' || source_[begin - 1] == '\t')) --begin;
    const bool line_start = begin == 0 || source_[begin - 1] == '\n';
    return line_start ? begin : tag;
  }

  void lex_tag() {
    const char kind = source_[at_ + 1];
    if (kind == '#') return lex_comment();
    const bool is_block = kind == '%';
    add(is_block ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    advance(at_ + 2);
    if (starts("-") || starts("+")) advance(at_ + 1);
    if (is_block && lex_raw()) return;
    lex_words(is_block ? "%}" : "}}");
    add(is_block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "");
    end_tag(is_block);
  }

  void lex_comment() {
    const std::size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) fail("a comment is not closed");
    advance(end);
    if (source_[end - 1] == '-') minus_ = true;
    end_tag(true);
  }

  // Behind the "}" pair: "-" takes all white space, and trim_blocks one line feed behind a block.
  void end_tag(bool is_block) {
    advance(at_ + 2);
    if (minus_) {
      std::size_t to = at_;
      while (to < source_.size() && is_space(source_[to])) ++to;
      advance(to);
    } else if (is_block && !plus_ && at_ < source_.size() && source_[at_] == '\n') {
      advance(at_ + 1);
    }
    minus_ = plus_ = false;
  }

  // {% raw %} ... {% endraw %}: text as it stands.
  bool lex_raw() {
    std::size_t word = at_;
    while (word < source_.size() && is_space(source_[word])) ++word;
    if (source_.compare(word, 3, "raw") != 0 || (word + 3 < source_.size() && is_name_start(source_[word + 3])))
      return false;
    fail("{% raw %} is not built");
  }

  void lex_words(std::string_view closing) {
    int brackets = 0;
    for (;;) {
      while (at_ < source_.size() && is_space(source_[at_])) advance(at_ + 1);
      if (at_ >= source_.size()) fail("a tag is not closed");
      if (brackets == 0 && (starts("-") || starts("+")) && source_.compare(at_ + 1, 2, closing) == 0) {
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
      fail(std::string("unexpected character '") + c + "'");
    }
    if (c == '(' || c == '[' || c == '{') ++brackets;
    if (c == ')' || c == ']' || c == '}') --brackets;
    if (brackets < 0) fail(std::string("unexpected '") + c + "'");
    add(TokenKind::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  void lex_name() {
    std::size_t end = at_;
    while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenKind::kName, source_.substr(at_, end - at_));
    advance(end);
  }

  void lex_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end + 1 < source_.size() && (source_[end] == 'e' || source_[end] == 'E') &&
        (is_digit(source_[end + 1]) || (end + 2 < source_.size() && is_digit(source_[end + 2])))) {
      real = true;
      end += 2;
      digits();
    }
    std::string number = source_.substr(at_, end - at_);
    std::erase(number, '_');
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

  // The escape whose letter is at i; returns the position of its last character. Unknown escapes stay, as in Python.
  std::size_t unescape(std::size_t i, std::string& text) const {
    const char c = source_[i];
    static const std::string_view letters = "nrtabfv0\\'\"";
    static const std::string_view meanings("\n\r\t\a\b\f\v\0\\'\"", 11);
    if (const std::size_t known = letters.find(c); known != std::string_view::npos) {
      text += meanings[known];
      return i;
    }
    if (c == '\n') return i;
    const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    std::uint32_t code = 0;
    if (length > 0 && i + length < source_.size()) {
      const char* begin = source_.data() + i + 1;
      const auto parsed = std::from_chars(begin, begin + length, code, 16);
      if (parsed.ec == std::errc() && parsed.ptr == begin + length && code < 0x110000 &&
          (code < 0xD800 || code > 0xDFFF)) {
        append_utf8(text, code);
        return i + length;
      }
    }
    (text += '\\') += c;
    return i;
  }

  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool minus_ = false, plus_ = false;  // of the tag being closed
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  if (const auto at = find_invalid_utf8(source)) {
    throw FormatError(name + ": byte " + std::to_string(*at), "the chat template is not valid UTF-8");
  }
  return Lexer(normalize_newlines(source), name).run();
}

}  // namespace lora_train::tokenizer::jinja
