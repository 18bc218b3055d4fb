#include "regex_classes.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "lora_train/base/error.h"
#include "unicode_properties.h"

namespace lora_train::tokenizer {
namespace {

constexpr const char* kWhiteSpace = R"(\t-\r\x{20}\x{85}\p{Z})";

// Oniguruma's \w in a class: alphabetic characters (circled letters too), marks, decimal digits, connectors.
std::string word_members() {
  std::string members = R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) members += *property_members(name);
  return members;
}

// And by itself: in Latin-1 the other digits too.
std::string word_class(bool is_negated = false) {
  return (is_negated ? "[^" : "[") + word_members() + R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}])";
}

std::string digit_members() { return *property_members("Nd"); }

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool is_letter_or_digit(char c) { return is_ascii(c) && std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_hex(char c) { return is_ascii(c) && std::isxdigit(static_cast<unsigned char>(c)) != 0; }

// Copies a pattern and spells classes out on the way. Lets pass what PCRE2 and Oniguruma are known to read alike.
class Speller {
 public:
  Speller(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\' && at_ + 1 < pattern_.size()) {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    return out_;
  }

 private:
  enum class Member { kNone, kCharacter, kClass, kRange };

  [[noreturn]] void refuse(const std::string& what) const {
    throw FormatError(where_, "the pattern " + what + ", which is not supported: " + pattern_);
  }

  bool has_here(std::string_view text) const { return pattern_.compare(at_, text.size(), text) == 0; }
  bool is_caseless() const { return !caseless_.empty() && caseless_.back(); }

  void copy(std::size_t length) {
    out_.append(pattern_, at_, length);
    at_ += length;
  }

  void character() {
    const char c = pattern_[at_];
    if (c == '{') check_interval();
    if (c == '(') open_group();
    if (c == ')' && caseless_.size() > 1) caseless_.pop_back();
    if (c == '[') return open_class();
    check_case(c);
    copy(1);
  }

  // Oniguruma lets these pairs match one character (the ligatures, sharp s), and knows newer pairs of cases than PCRE2.
  void check_case(char c) const {
    if (!is_caseless()) return;
    if (!is_ascii(c)) refuse("ignores the case of a character beyond ASCII");
    std::size_t next = at_ + 1;
    while (next < pattern_.size() && std::string_view("()?:>").find(pattern_[next]) != std::string_view::npos) ++next;
    if (in_class_ || next >= pattern_.size()) return;
    const std::string pair = {static_cast<char>(c | 0x20), static_cast<char>(pattern_[next] | 0x20)};
    for (const char* fold : {"ss", "s{", "st", "ff", "f{", "fi", "fl"}) {
      if (pair == fold) refuse("ignores the case of \"" + pair + "\", which a single character can stand for");
    }
  }

  void open_class() {
    in_class_ = true;
    last_ = Member::kNone;
    copy(has_here("[^") ? 2 : 1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("has a class that begins with ]");
  }

  void class_character() {
    const char c = pattern_[at_];
    if (has_here("[:")) refuse("uses a POSIX class, as [[:alpha:]]");
    if (c == '[') refuse("has a class in a class");
    if (has_here("&&")) refuse("intersects classes");
    check_case(c);
    if (c == ']') {
      in_class_ = false;
      copy(1);
    } else if (c == '-' && last_ != Member::kNone && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
      if (last_ != Member::kCharacter) refuse("has a range that begins with a class or a range");
      copy(1);
      range_end();
    } else {
      copy(1);
      last_ = Member::kCharacter;
    }
  }

  void range_end() {
    if (pattern_[at_] == '\\' && at_ + 1 < pattern_.size()) {
      escape();
      if (last_ == Member::kClass) refuse("has a range that ends with a class");
    } else if (pattern_[at_] == '[') {
      refuse("has a class in a class");
    } else {
      check_case(pattern_[at_]);
      copy(1);
    }
    last_ = Member::kRange;
  }

  // Oniguruma reads {2,3}+ as a repeated group and {2}? as an optional one, PCRE2 as possessive and lazy.
  void check_interval() const {
    const std::size_t end = pattern_.find_first_not_of("0123456789,", at_ + 1);
    if (end == std::string::npos || end == at_ + 1 || pattern_[end] != '}') return;
    const bool is_range = pattern_.find(',', at_) < end;
    const char next = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (pattern_[at_ + 1] == ',' || next == '+' || (next == '?' && !is_range))
      refuse("uses the repetition " + pattern_.substr(at_, end + 1 - at_) +
             (next == '+' || next == '?' ? std::string(1, next) : ""));
  }

  // Options other than i mean something else to Oniguruma ((?m) lets the dot match a line feed), and (?i) in the middle
  // reaches further than in PCRE2.
  void open_group() {
    if (caseless_.empty()) caseless_.push_back(at_ == 0 && has_here("(?i)"));
    caseless_.push_back(is_caseless() || has_here("(?i:"));
    if (has_here("(*")) refuse("uses a verb (*");
    if (!has_here("(?") || has_here("(?i:") || (at_ == 0 && has_here("(?i)"))) return;
    for (const char* known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (has_here(known)) return;
    }
    const std::size_t end = pattern_.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at_ + 2);
    const std::size_t length = end == at_ + 2 ? 1 : std::min(end, pattern_.size()) - at_ - 2;
    const bool is_option = end != at_ + 2;
    refuse((is_option ? "uses the option (?" : "uses the group (?") + pattern_.substr(at_ + 2, length));
  }

  void escape() {
    const char escaped = pattern_[at_ + 1];
    if (escaped == 'p' || escaped == 'P') return property(escaped == 'P');
    last_ = Member::kClass;
    if (in_class_ && (escaped == 'w' || escaped == 'd')) {
      out_ += escaped == 'w' ? word_members() : digit_members();
    } else if (!in_class_ && (escaped == 'w' || escaped == 'W')) {
      out_ += word_class(escaped == 'W');
    } else if (!in_class_ && (escaped == 'd' || escaped == 'D')) {
      out_ += (escaped == 'D' ? "[^" : "[") + digit_members() + "]";
    } else if ((escaped == 'b' || escaped == 'B') && !in_class_) {
      out_ += word_boundary(escaped == 'B');
    } else if (escaped == 's') {
      out_ += in_class_ ? kWhiteSpace : "[" + std::string(kWhiteSpace) + "]";
    } else if (escaped == 'S' && !in_class_) {
      out_ += "[^" + std::string(kWhiteSpace) + "]";
    } else {
      return escaped_character(escaped);
    }
    at_ += 2;
  }

  // \S inside a class has no spelled-out form here; other letters are no characters, or others to Oniguruma.
  void escaped_character(char escaped) {
    const std::string_view known = in_class_ ? "nrtfae" : "nrtfaeAzZ";
    const bool is_known = known.find(escaped) != std::string_view::npos;
    if (is_letter_or_digit(escaped) && !is_known && !is_code()) {
      refuse(std::string("uses \\") + escaped + (in_class_ ? " in a class" : ""));
    }
    if (is_caseless() && escaped == 'x') refuse("ignores the case of \\x");
    check_case(escaped);
    copy(2);
    last_ = Member::kCharacter;
    if (escaped != 'x') return;
    copy(pattern_[at_] == '{' ? pattern_.find('}', at_) + 1 - at_ : 2);
  }

  // \x{1F600}, or \x41: beyond ASCII the latter is a byte to Oniguruma.
  bool is_code() const {
    if (!has_here("\\x") || at_ + 3 >= pattern_.size()) return false;
    const std::size_t digits = pattern_.find_first_not_of("0123456789abcdefABCDEF", at_ + 3);
    if (pattern_[at_ + 2] == '{') return digits != std::string::npos && digits > at_ + 3 && pattern_[digits] == '}';
    return is_hex(pattern_[at_ + 2]) && pattern_[at_ + 2] < '8' && is_hex(pattern_[at_ + 3]);
  }

  static std::string word_boundary(bool is_negated) {
    const std::string word = word_class();
    const std::string inside = is_negated ? "(?=" : "(?!", outside = is_negated ? "(?!" : "(?=";
    return "(?:(?<=" + word + ")" + inside + word + ")|(?<!" + word + ")" + outside + word + "))";
  }

  void property(bool is_negated) {
    const std::size_t end = pattern_.find('}', at_);
    const std::string spelled = is_negated ? "\\P" : "\\p";
    if (end == std::string::npos || pattern_[at_ + 2] != '{') refuse("uses " + spelled + " without {}");
    const std::string name = pattern_.substr(at_ + 3, end - at_ - 3);
    const auto members = property_members(name);
    if (!members) refuse("uses the property " + spelled + "{" + name + "}");
    if (is_caseless()) refuse("ignores the case of a property, " + spelled + "{" + name + "}");
    if (in_class_ && is_negated) refuse("uses \\P{" + name + "} in a class");
    out_ += in_class_ ? *members : (is_negated ? "[^" : "[") + *members + "]";
    last_ = Member::kClass;
    at_ = end + 1;
  }

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  Member last_ = Member::kNone;  // of the class that is open
  std::vector<bool> caseless_;   // of the pattern, once it has a group, and of the open groups
};

}  // namespace

std::string spell_out_classes(const std::string& pattern, const std::string& where) {
  return Speller(pattern, where).run();
}

}  // namespace lora_train::tokenizer
