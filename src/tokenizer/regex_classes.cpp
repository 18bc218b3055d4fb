#include "regex_classes.h"

#include <string_view>

#include "lora_train/base/error.h"

namespace lora_train::tokenizer {
namespace {

// What Unicode 15, 15.1 and 16 added (UnicodeData.txt of 16.0 less that of 14.0).
constexpr const char* kNewLu = R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})";

constexpr const char* kNewLl = R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})";

constexpr const char* kNewLm =
    R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})";

constexpr const char* kNewLo =
    R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
    R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446})"
    R"(\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D43}-\x{16D6A}\x{18CFF}\x{1B132}\x{1B155})"
    R"(\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";

constexpr const char* kNewM =
    R"(\x{0897}\x{0CF3}\x{0ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241}\x{113B8}-\x{113C0}\x{113C2})"
    R"(\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2}\x{113E1}-\x{113E2}\x{11F00}-\x{11F01})"
    R"(\x{11F03}\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42}\x{11F5A}\x{13440}\x{13447}-\x{13455})"
    R"(\x{1611E}-\x{1612F}\x{1E08F}\x{1E4EC}-\x{1E4EF}\x{1E5EE}-\x{1E5EF})";

constexpr const char* kNewNd =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
    R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";

constexpr const char* kNewNo = R"(\x{1D2C0}-\x{1D2D3})";

constexpr const char* kWhiteSpace = R"(\t-\r\x{20}\x{85}\p{Z})";

// Oniguruma's \w in a class: alphabetic characters (circled letters too), marks, decimal digits, connectors.
std::string word_members() {
  return R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})" +
         std::string(kNewLu) + kNewLl + kNewLm + kNewLo + kNewM + kNewNd;
}

// And by itself: in Latin-1 the other digits too.
std::string word_class(bool is_negated = false) {
  return (is_negated ? "[^" : "[") + word_members() + R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}])";
}

std::string digit_members() { return std::string(R"(\p{Nd})") + kNewNd; }

// The members that a property has gained; empty for those that are left to PCRE2.
std::string new_members(std::string_view property) {
  if (property == "Lu") return kNewLu;
  if (property == "Ll") return kNewLl;
  if (property == "Lm") return kNewLm;
  if (property == "Lo") return kNewLo;
  if (property == "M") return kNewM;
  if (property == "N") return std::string(kNewNd) + kNewNo;
  if (property == "Nd") return kNewNd;
  if (property == "L") return std::string(kNewLu) + kNewLl + kNewLm + kNewLo;
  return "";
}

// Copies a pattern and spells classes out on the way.
class Speller {
 public:
  Speller(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\' && at_ + 1 < pattern_.size()) {
        escape();
        continue;
      }
      if (c == '[' && in_class_ && pattern_.compare(at_, 2, "[:") != 0) refuse("has a class in a class");
      if (c == '&' && in_class_ && pattern_.compare(at_, 2, "&&") == 0) refuse("intersects classes");
      if (c == '{' && !in_class_) check_interval();
      if (c == '(' && pattern_.compare(at_, 2, "(?") == 0) check_group();
      if (c == '[') in_class_ = true;
      if (c == ']') in_class_ = false;
      out_ += c;
      ++at_;
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw FormatError(where_, "the pattern " + what + ", which is not built: " + pattern_);
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

  // Options other than i mean something else to Oniguruma ((?m) lets the dot match a line feed).
  void check_group() const {
    const std::size_t end = pattern_.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at_ + 2);
    const std::string options = pattern_.substr(at_ + 2, end == std::string::npos ? end : end - at_ - 2);
    if (!options.empty() && options != "i") refuse("uses the option (?" + options);
  }

  void escape() {
    const char escaped = pattern_[at_ + 1];
    if ((escaped == 'p' || escaped == 'P') && property(escaped == 'P')) return;
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
    } else if (escaped == 'W' || escaped == 'D' || escaped == 'S' || escaped == 'Q' || escaped == 'E' ||
               escaped == 'h' || escaped == 'H') {
      // Oniguruma's \h is a hexadecimal digit, and \S inside a class has no spelled-out form here.
      refuse(std::string("uses \\") + escaped + (in_class_ ? " in a class" : ""));
    } else {
      out_ += {'\\', escaped};
    }
    at_ += 2;
  }

  static std::string word_boundary(bool is_negated) {
    const std::string word = word_class();
    const std::string inside = is_negated ? "(?=" : "(?!", outside = is_negated ? "(?!" : "(?=";
    return "(?:(?<=" + word + ")" + inside + word + ")|(?<!" + word + ")" + outside + word + "))";
  }

  // \p{name} or \P{name} with new members; false leaves it to escape().
  bool property(bool is_negated) {
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string::npos || pattern_[at_ + 2] != '{') return false;
    const std::string name = pattern_.substr(at_ + 3, end - at_ - 3);
    const std::string added = new_members(name);
    if (added.empty()) return false;
    if (in_class_ && is_negated) refuse("uses \\P{" + name + "} in a class");
    const std::string members = "\\p{" + name + "}" + added;
    out_ += in_class_ ? members : (is_negated ? "[^" : "[") + members + "]";
    at_ = end + 1;
    return true;
  }

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string spell_out_classes(const std::string& pattern, const std::string& where) {
  return Speller(pattern, where).run();
}

}  // namespace lora_train::tokenizer
