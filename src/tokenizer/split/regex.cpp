#include "regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bpe/valid_utf8.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"
#include "lora_train/tokenizer/split/text_pattern.h"

namespace lora_train::tokenizer {
namespace {

struct Property {
  std::string_view name;  // of a category or script
  const char* added;      // by Unicode 15, 15.1 and 16, in addition to PCRE2 (Unicode 14)
};

// Compared with Oniguruma's for every code point. Mn has lost a member (U+1171E), which no class can express. For
// scripts, PCRE2 uses Script_Extensions, Oniguruma Script.
constexpr Property kProperties[] = {
    {"M", R"(\x{0897}\x{0CF3}\x{0ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241}\x{113B8}-\x{113C0}\x{113C2})"
          R"(\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2}\x{113E1}-\x{113E2}\x{11F00}-\x{11F01}\x{11F03})"
          R"(\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42}\x{11F5A}\x{13440}\x{13447}-\x{13455}\x{1611E}-\x{1612F}\x{1E08F})"
          R"(\x{1E4EC}-\x{1E4EF}\x{1E5EE}-\x{1E5EF})"},
    {"Lu", R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"},
    {"Ll", R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"},
    {"Lm", R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})"},
    {"Lo", R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240}\x{11380}-\x{11389})"
           R"(\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02})"
           R"(\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D})"
           R"(\x{16D43}-\x{16D6A}\x{18CFF}\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
           R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Mc", R"(\x{0CF3}\x{113B8}-\x{113BA}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113CD}\x{113CF}\x{1171E})"
           R"(\x{11F03}\x{11F34}-\x{11F35}\x{11F3E}-\x{11F3F}\x{11F41}\x{1612A}-\x{1612C})"},
    {"Nd", R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
           R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"},
    {"No", R"(\x{1D2C0}-\x{1D2D3})"},
    {"Pd", R"(\x{10D6E})"},
    {"Po", R"(\x{1B4E}-\x{1B4F}\x{1B7F}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8}\x{11B00}-\x{11B09}\x{11BE1})"
           R"(\x{11F43}-\x{11F4F}\x{16D6D}-\x{16D6F}\x{1E5FF})"},
    {"Sm", R"(\x{10D8E}-\x{10D8F})"},
    {"So",
     R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{1CC00}-\x{1CCEF}\x{1CD00}-\x{1CEB3})"
     R"(\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F}\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1})"
     R"(\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABF}\x{1FAC6})"
     R"(\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF}\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8}\x{1FBCB}-\x{1FBEF})"},
    {"Cf", R"(\x{13439}-\x{1343F})"},
    {"Han", R"(\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Hiragana", R"(\x{1B132})"},
    {"Katakana", R"(\x{1B155})"},
    {"Latin", R"(\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{1DF25}-\x{1DF2A})"},
    {"Cyrillic", R"(\x{1C89}-\x{1C8A}\x{1E030}-\x{1E06D}\x{1E08F})"},
    {"Arabic", R"(\x{0897}\x{10EC2}-\x{10EC4}\x{10EFC}-\x{10EFF})"},
    {"Devanagari", R"(\x{11B00}-\x{11B09})"},
};

// Properties without additions.
constexpr std::string_view kUnchanged[] = {"Lt", "Me",     "Nl",    "Pc",     "Ps",   "Pe",      "Pi",
                                           "Pf", "Sc",     "Sk",    "Zs",     "Zl",   "Zp",      "Cc",
                                           "Co", "Hangul", "Greek", "Hebrew", "Thai", "Bopomofo"};

struct Union {
  std::string_view name;
  std::array<std::string_view, 7> parts;
};

constexpr Union kUnions[] = {{"L", {"Lu", "Ll", "Lt", "Lm", "Lo"}},
                             {"N", {"Nd", "Nl", "No"}},
                             {"P", {"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"}},
                             {"S", {"Sm", "Sc", "Sk", "So"}},
                             {"Z", {"Zs", "Zl", "Zp"}}};

std::optional<std::string> added_to(std::string_view name) {
  for (const Property& property : kProperties) {
    if (property.name == name) return property.added;
  }
  if (std::find(std::begin(kUnchanged), std::end(kUnchanged), name) == std::end(kUnchanged)) return std::nullopt;
  return "";
}

/// The members for \p{name} in a class of a PCRE2 pattern; empty for a property whose characters were not compared with
/// the reference tokenizers' engine.
std::optional<std::string> property_members(std::string_view name) {
  const std::string pcre2 = fmt::format("{}{}}}", name.size() > 2 ? "\\p{sc:" : "\\p{", name);
  for (const Union& whole : kUnions) {
    if (whole.name != name) continue;
    std::string members = pcre2;
    for (const std::string_view part : whole.parts) members += added_to(part).value_or("");
    return members;
  }
  const auto added = added_to(name);
  return added ? std::optional(pcre2 + *added) : std::nullopt;
}

constexpr const char* kWhiteSpace = R"(\t-\r\x{20}\x{85}\p{Z})";

// Oniguruma's \w in a class: alphabetic characters (circled letters too), marks, decimal digits, connectors.
std::string word_members() {
  std::string members = R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) members += *property_members(name);
  return members;
}

// Also \w, but outside a class only: the other digits in Latin-1.
constexpr const char* kOtherDigits = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool is_letter_or_digit(char c) { return is_ascii(c) && std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_hex(char c) { return is_ascii(c) && std::isxdigit(static_cast<unsigned char>(c)) != 0; }

// Copies a pattern and spells out classes on the way. Accepts what PCRE2 and Oniguruma are known to read alike.
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
    throw FormatError(where_, "the pattern {}, which is not supported: {}", what, pattern_);
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

  // Oniguruma lets these pairs match one character (the ligatures, sharp s), and knows newer case pairs than PCRE2.
  void check_case(char c) const {
    if (!is_caseless()) return;
    if (!is_ascii(c)) refuse("ignores the case of a character beyond ASCII");
    std::size_t next = at_ + 1;
    while (next < pattern_.size() && std::string_view("()?:>").find(pattern_[next]) != std::string_view::npos) ++next;
    if (in_class_ || next >= pattern_.size()) return;
    const std::string pair = {static_cast<char>(c | 0x20), static_cast<char>(pattern_[next] | 0x20)};
    for (const char* fold : {"ss", "s{", "st", "ff", "f{", "fi", "fl"}) {
      if (pair == fold) refuse(fmt::format("ignores the case of \"{}\", which a single character can stand for", pair));
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
    if (has_here("[:")) refuse("uses a POSIX class such as [[:alpha:]]");
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
      refuse(fmt::format("uses the repetition {}{}", pattern_.substr(at_, end + 1 - at_),
                         next == '+' || next == '?' ? std::string(1, next) : ""));
  }

  // Options other than i have another meaning in Oniguruma ((?m) lets the dot match a line feed), and (?i) in the
  // middle extends further than in PCRE2.
  void open_group() {
    if (caseless_.empty()) caseless_.push_back(at_ == 0 && has_here("(?i)"));
    caseless_.push_back(is_caseless() || has_here("(?i:"));
    if (has_here("(*")) refuse("uses a verb (*");
    if (!has_here("(?") || has_here("(?i:") || (at_ == 0 && has_here("(?i)"))) return;
    for (const char* known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (has_here(known)) return;
    }
    refuse("uses a group that begins with " + pattern_.substr(at_, 3));
  }

  void escape() {
    const char escaped = pattern_[at_ + 1];
    if (escaped == 'p' || escaped == 'P') return property(escaped == 'P');
    last_ = Member::kClass;
    const auto kind = static_cast<char>(escaped | 0x20);
    const bool is_negated = kind != escaped;
    if (in_class_ && (is_negated || kind == 'b')) return escaped_character(escaped);
    if (kind == 'w')
      out_ += class_of(in_class_ ? word_members() : word_members() + kOtherDigits, is_negated);
    else if (kind == 'd')
      out_ += class_of(*property_members("Nd"), is_negated);
    else if (kind == 's')
      out_ += class_of(kWhiteSpace, is_negated);
    else if (kind == 'b')
      out_ += word_boundary(is_negated);
    else
      return escaped_character(escaped);
    at_ += 2;
  }

  // The members for the open class, or a class of them.
  std::string class_of(const std::string& members, bool is_negated) const {
    return in_class_ ? members : fmt::format("{}{}]", is_negated ? "[^" : "[", members);
  }

  // \S inside a class has no spelled-out form here; other letters are not characters, or are others in Oniguruma.
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

  // \x{1F600}, or \x41: beyond ASCII, Oniguruma reads the latter as a byte.
  bool is_code() const {
    if (!has_here("\\x") || at_ + 3 >= pattern_.size()) return false;
    const std::size_t digits = pattern_.find_first_not_of("0123456789abcdefABCDEF", at_ + 3);
    if (pattern_[at_ + 2] == '{') return digits != std::string::npos && digits > at_ + 3 && pattern_[digits] == '}';
    return is_hex(pattern_[at_ + 2]) && pattern_[at_ + 2] < '8' && is_hex(pattern_[at_ + 3]);
  }

  static std::string word_boundary(bool is_negated) {
    const std::string word = fmt::format("[{}{}]", word_members(), kOtherDigits);
    const std::string inside = is_negated ? "(?=" : "(?!", outside = is_negated ? "(?!" : "(?=";
    return fmt::format("(?:(?<={}){}{})|(?<!{}){}{}))", word, inside, word, word, outside, word);
  }

  void property(bool is_negated) {
    const std::size_t end = pattern_.find('}', at_);
    const std::string spelled = is_negated ? "\\P" : "\\p";
    if (end == std::string::npos || pattern_[at_ + 2] != '{') refuse(fmt::format("uses {} without {{}}", spelled));
    const std::string name = pattern_.substr(at_ + 3, end - at_ - 3);
    const auto members = property_members(name);
    if (!members) refuse(fmt::format("uses the property {}{{{}}}", spelled, name));
    if (is_caseless()) refuse(fmt::format("ignores the case of a property, {}{{{}}}", spelled, name));
    if (in_class_ && is_negated) refuse(fmt::format("uses \\P{{{}}} in a class", name));
    out_ += class_of(*members, is_negated);
    last_ = Member::kClass;
    at_ = end + 1;
  }

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  Member last_ = Member::kNone;  // in the open class
  std::vector<bool> caseless_;   // for the pattern, once it has a group, and for the open groups
};

/// The pattern for PCRE2 with classes spelled out: \s and \S as Unicode's White_Space (PCRE2 adds U+180E); properties,
/// \w, \d and \b as of Unicode 16, as in the engines of Hugging Face and mistral-common but not in Debian 12's PCRE2
/// (Unicode 14). FormatError for anything that those engines are not known to read in the same way.
std::string spell_out_classes(const std::string& pattern, const std::string& where) {
  return Speller(pattern, where).run();
}

constexpr std::size_t kJitStackBytes = std::size_t{8} << 20U;

// What matching needs besides the pattern, one per thread. The default stack of 32 KiB is too little for long runs of
// one class.
struct Matcher {
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  Matcher() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Matcher() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

struct Compiled {
  std::shared_ptr<pcre2_code> code;  // null if the pattern does not compile, for the error at the offset
  int error = 0;
  std::size_t offset = 0;
};

Compiled compile(const std::string& pattern, std::uint32_t options) {
  Compiled result;
  result.code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | options, &result.error, &result.offset, nullptr),
      pcre2_code_free);
  return result;
}

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& where) : where_(where) {
  const Compiled compiled = compile(spell_out_classes(pattern, where), PCRE2_MULTILINE);
  code_ = compiled.code;
  if (!code_) throw FormatError(where, "the pattern does not compile ({}): {}", pcre2_message(compiled.error), pattern);
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without JIT, matching still works
}

void Regex::split(std::string_view text, std::vector<Stretch>& out) const {
  thread_local const Matcher matcher;
  PCRE2_SIZE* const found = pcre2_get_ovector_pointer(matcher.data);
  const auto attempt = [&](std::size_t from, std::uint32_t options, pcre2_match_data* data) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, data, matcher.context);
  };
  // Without JIT, a match can need a gigabyte, which its data keep.
  const auto attempt_without_jit = [&](std::size_t from) {
    const MatchData data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
    const int result = attempt(from, PCRE2_NO_JIT, data.get());
    std::copy_n(pcre2_get_ovector_pointer(data.get()), 2, found);
    return result;
  };
  out.clear();
  std::size_t done = 0;
  StopPoll stop_poll;
  for (std::size_t from = 0; from <= text.size();) {
    stop_poll();
    int result = attempt(from, 0, matcher.data);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = attempt_without_jit(from);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw DataError(fmt::format("byte {}", from), "the tokenizer's split pattern fails here: {} ({})",
                      pcre2_message(result), where_);
    }
    const std::size_t begin = found[0], end = found[1];
    if (begin == end && end == done && !out.empty()) {  // right behind another match
      if (from == text.size()) break;
      from += valid_utf8_char(text, from).length;
      continue;
    }
    if (begin > done) out.push_back({done, begin, false});
    out.push_back({begin, end, true});
    from = done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), false});
}

TextPattern::TextPattern(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {
  if (find_invalid_utf8(pattern)) throw ConfigError(where, "the regular expression is not valid UTF-8.");
  const Compiled compiled = compile(pattern, 0);
  code_ = compiled.code;
  if (!code_) {
    throw ConfigError(where, "\"{}\" is not a regular expression: {} at offset {}.", pattern,
                      pcre2_message(compiled.error), compiled.offset);
  }
}

std::optional<std::string> TextPattern::find(const std::string& text) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
  const int num_groups =
      pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), nullptr);
  if (num_groups == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (num_groups < 0) {
    throw ConfigError(where_, "\"{}\" gives up on a text of {} bytes: {}. Write it without nested repeats.", pattern_,
                      text.size(), pcre2_message(num_groups));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  int group = 0;
  for (int i = 1; i < num_groups && group == 0; ++i) {
    if (ends[2 * i] != PCRE2_UNSET) group = i;
  }
  return text.substr(ends[2 * group], ends[2 * group + 1] - ends[2 * group]);
}

}  // namespace lora_train::tokenizer
