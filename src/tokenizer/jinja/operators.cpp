// Operators, attributes, items, iteration and strings.

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "jinja.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

[[noreturn]] void no_operator(const std::string& op, const Value& left, const Value& right) {
  left.check_defined();
  right.check_defined();
  throw RenderError{
      fmt::format("unsupported operand types for {}: '{}' and '{}'", op, left.type_name(), right.type_name())};
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw RenderError{"division by zero"};
  if (b == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value whole_arithmetic(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (op == "//") result = floor_divide(a, b);
  if (op == "%") result = b == -1 ? 0 : a - floor_divide(a, b) * b;
  if (overflow) throw RenderError{"an integer grew beyond 64 bits", true};
  return result;
}

// The remainder has the sign of the divisor, and the quotient fits it, as in CPython.
struct FloatDivision {
  double quotient, remainder;
};
FloatDivision divide_floor(double a, double b) {
  double remainder = std::fmod(a, b), quotient = (a - remainder) / b;
  if (remainder == 0.0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1.0;
  }
  if (quotient == 0.0) return {std::copysign(0.0, a / b), remainder};
  const double floored = std::floor(quotient);
  return {quotient - floored > 0.5 ? floored + 1.0 : floored, remainder};
}

Value power_of(double a, double b) {
  if (a == 0.0 && b < 0) throw RenderError{"0.0 cannot be raised to a negative power"};
  if (a < 0 && std::floor(b) != b && std::isfinite(a) && std::isfinite(b))
    throw RenderError{"complex numbers are not supported", true};
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) throw RenderError{"numerical result out of range"};
  return power;
}

Value real_arithmetic(const std::string& op, double a, double b) {
  if ((op == "/" || op == "//" || op == "%") && b == 0.0) throw RenderError{"division by zero"};
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return a / b;
  if (op == "//") return divide_floor(a, b).quotient;
  if (op == "%") return divide_floor(a, b).remainder;
  return power_of(a, b);
}

Value arithmetic(const std::string& op, const Value& left, const Value& right) {
  const bool whole = left.is_whole() && right.is_whole();
  if (!whole || op == "/") return real_arithmetic(op, left.number(), right.number());
  if (op != "**") return whole_arithmetic(op, left.whole(), right.whole());
  if (right.whole() < 0) return power_of(left.number(), right.number());
  const double power = std::pow(left.number(), right.number());
  if (std::fabs(power) > 9e15) throw RenderError{"a power grew beyond 2^53", true};
  return static_cast<std::int64_t>(power);
}

constexpr std::size_t kMaxListItems = 1000000;
[[noreturn]] void refuse_long_list() { throw RenderError{"a list grew beyond 1,000,000 items", true, true}; }

Value repeat(const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (const Text* text = value.as_text()) {
    if (!text->empty() && times > kMaxTextBytes / text->size()) check_text_size(kMaxTextBytes + 1);
    Text out;
    for (std::size_t i = 0; i < times && !text->empty(); ++i) out.append(*text);
    return out;
  }
  const List& list = *value.as_list();
  if (!list.empty() && times > kMaxListItems / list.size()) refuse_long_list();
  spend_bytes(times * list.size() * sizeof(Value));
  List out;
  for (std::size_t i = 0; i < times && !list.empty(); ++i) out.insert(out.end(), list.begin(), list.end());
  return {std::move(out), value.list_kind()};
}

Value concatenate(const Text& a, const Text& b) {
  Text out = a;
  spend_bytes(a.size());
  out.append(b);
  return out;
}

Value concatenate(const Value& a, const Value& b) {
  List out = *a.as_list();
  spend_bytes((out.size() + b.as_list()->size()) * sizeof(Value));
  out.insert(out.end(), b.as_list()->begin(), b.as_list()->end());
  if (out.size() > kMaxListItems) refuse_long_list();
  return {std::move(out), a.list_kind()};
}

// A list or tuple, the kinds that + and * accept.
bool is_plain_list(const Value& value) { return value.as_list() != nullptr && value.list_kind() <= ListKind::kTuple; }

struct SliceRange {
  std::int64_t start, stop, step;

  template <class Take>
  void for_each(Take take) const {
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) take(static_cast<std::size_t>(i));
  }
};

std::int64_t slice_part(const Value& part, std::int64_t fallback, std::int64_t low, std::int64_t high,
                        std::int64_t size) {
  if (part.is_none()) return fallback;
  if (!part.is_whole()) throw RenderError{"slice indices must be integers or None"};
  std::int64_t value = part.whole();
  if (value < 0) value += size;
  return std::clamp(value, low, high);
}

SliceRange slice_range(const Value& start, const Value& stop, const Value& step, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  if (!step.is_none() && !step.is_whole()) throw RenderError{"slice indices must be integers or None"};
  const std::int64_t by = step.is_none() ? 1 : std::clamp<std::int64_t>(step.whole(), -(1LL << 40), 1LL << 40);
  if (by == 0) throw RenderError{"slice step cannot be zero"};
  if (by > 0) return {slice_part(start, 0, 0, size, size), slice_part(stop, size, 0, size, size), by};
  return {slice_part(start, size - 1, -1, size - 1, size), slice_part(stop, -1, -1, size - 1, size), by};
}

Value slice_text(const Text& text, const Value& start, const Value& stop, const Value& step) {
  const auto positions = char_positions(text.bytes());
  const SliceRange range = slice_range(start, stop, step, positions.size() - 1);
  const auto begin = static_cast<std::size_t>(range.start), end = static_cast<std::size_t>(range.stop);
  if (range.step == 1) return begin < end ? text.slice(positions[begin], positions[end]) : Text();
  Text out;
  range.for_each([&](std::size_t i) { out.append(text, positions[i], positions[i + 1]); });
  return out;
}

std::optional<Value> loop_attribute(const Loop& loop, const std::string& name) {
  const std::size_t length = loop.items.size();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.index0 + 1 == length;
  if (name == "length") return Value::integer(length);
  if (name == "revindex") return Value::integer(length - loop.index0);
  if (name == "revindex0") return Value::integer(length - loop.index0 - 1);
  if (name == "depth") return static_cast<std::int64_t>(loop.depth);
  if (name == "depth0") return static_cast<std::int64_t>(loop.depth - 1);
  if (name == "previtem")
    return loop.index0 > 0 ? loop.items[loop.index0 - 1] : Value(Undefined{"there is no previous item"});
  if (name == "nextitem")
    return loop.index0 + 1 < length ? loop.items[loop.index0 + 1] : Value(Undefined{"there is no next item"});
  return std::nullopt;
}

Value no_member(const Value& object, const std::string& name) {
  object.check_defined();
  return Undefined{name};
}

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

utf8proc_category_t category_of(std::uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

// Unicode's Case_Ignorable: characters allowed between a sigma and the letters around it.
bool is_case_ignorable(std::uint32_t code) {
  static const std::u32string_view others =
      U"\'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  constexpr utf8proc_category_t kCategories[] = {UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME, UTF8PROC_CATEGORY_CF,
                                                 UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_SK};
  return std::ranges::count(kCategories, category_of(code)) > 0 ||
         others.find(static_cast<char32_t>(code)) != std::u32string_view::npos;
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
  const bool is_title = category_of(code) == UTF8PROC_CATEGORY_LT;
  // utf8proc has a capital for the sharp s that Unicode's title case lacks.
  if (several.empty() || is_title || (title != code && code != kSharpS)) return append_utf8(out, title);
  append_utf8(out, mapped(utf8proc_totitle, several.front()));
  for (std::size_t i = 1; i < several.size(); ++i) {
    const bool is_last = i + 1 == several.size();
    append_utf8(out, several[i] == kIota && is_last ? kIotaBelow : several[i]);
  }
}

/// True if the character has a case. Letters in upper, lower and title case are neighbouring categories.
bool is_cased(std::uint32_t code) {
  const utf8proc_category_t category = category_of(code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT) ||
         mapped(utf8proc_toupper, code) != code || mapped(utf8proc_tolower, code) != code || code == 0xAA ||
         code == 0xBA || (code >= 0x02B0 && code <= 0x02B8);
}

// True if the sigma at byte `at` ends a word.
bool is_final_sigma(const std::string& text, std::size_t at) {
  const auto code_at = [&](std::size_t position) { return utf8_char(text, position).code_point; };
  std::size_t before = at;
  do {
    if (before == 0) return false;
    before = char_begin_before(text, before);
  } while (is_case_ignorable(code_at(before)));
  if (!is_cased(code_at(before))) return false;
  std::size_t after = at + 2;
  while (after < text.size() && is_case_ignorable(code_at(after)))
    after += std::max<std::size_t>(utf8_char(text, after).length, 1);
  return after >= text.size() || !is_cased(code_at(after));
}

// Appends the lower case of the character at byte `at` of the text, which is `code`.
void append_lower(std::string& out, const std::string& text, std::size_t at, std::uint32_t code) {
  constexpr std::uint32_t kSigma = 0x03A3, kFinalSigma = 0x03C2, kDottedI = 0x0130;
  if (code == kDottedI)
    out += "i\xCC\x87";
  else
    append_utf8(out, code == kSigma && is_final_sigma(text, at) ? kFinalSigma : mapped(utf8proc_tolower, code));
}

}  // namespace

Value binary(const std::string& op, const Value& left, const Value& right) {
  if (op == "~") return concatenate(left.str(), right.str());
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == "+" && left.as_text() != nullptr && right.as_text() != nullptr) {
    return concatenate(*left.as_text(), *right.as_text());
  }
  if (op == "+" && is_plain_list(left) && is_plain_list(right) && left.list_kind() == right.list_kind()) {
    return concatenate(left, right);
  }
  const auto repeats = [](const Value& v) { return v.as_text() != nullptr || is_plain_list(v); };
  if (op == "*" && repeats(left) && right.is_whole()) return repeat(left, right.whole());
  if (op == "*" && repeats(right) && left.is_whole()) return repeat(right, left.whole());
  if (op == "%" && left.as_text() != nullptr) return percent_format(*left.as_text(), right);
  no_operator(op, left, right);
}

Value signed_number(const Value& value, bool negate) {
  value.check_defined();
  if (!value.is_number())
    throw RenderError{fmt::format("bad operand type for unary {}: '{}'", negate ? "-" : "+", value.type_name())};
  if (value.as_double() != nullptr) return negate ? -*value.as_double() : *value.as_double();
  return whole_arithmetic("*", value.whole(), negate ? -1 : 1);
}

Value truncated(double value) {
  if (!(std::fabs(value) < 9.2e18)) throw RenderError{"an integer beyond 64 bits is not supported", true};
  return static_cast<std::int64_t>(value);
}

int compare(const Value& a, const Value& b) {
  spend_bytes(32);
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.whole() < b.whole() ? -1 : a.whole() > b.whole() ? 1 : 0;
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    spend_bytes(std::min(a.as_text()->size(), b.as_text()->size()));
    return a.as_text()->bytes().compare(b.as_text()->bytes());
  }
  if (is_plain_list(a) && is_plain_list(b) && a.list_kind() == b.list_kind()) {
    const List &x = *a.as_list(), &y = *b.as_list();
    const auto [i, j] = std::ranges::mismatch(x, y, equal);
    if (i != x.end() && j != y.end()) return compare(*i, *j);
    return i != x.end() ? 1 : j != y.end() ? -1 : 0;
  }
  no_operator("comparison", a, b);
}

List iterate(const Value& value) {
  if (const List* list = value.as_list()) {
    if (value.is_generator()) return std::exchange(*std::get<std::shared_ptr<List>>(value.data), List());
    spend_bytes(sizeof(Value) * list->size());
    return *list;
  }
  List out;
  const auto add = [&](Value item) {
    spend_bytes(sizeof(Value));
    out.push_back(std::move(item));
  };
  if (const Dict* dict = value.as_mapping()) {
    for (const auto& item : dict->items) add(Value::string(item.first));
    return out;
  }
  if (const Text* text = value.as_text()) {
    const auto positions = char_positions(text->bytes());
    for (std::size_t i = 0; i + 1 < positions.size(); ++i) add(text->slice(positions[i], positions[i + 1]));
    return out;
  }
  if (value.is_undefined()) return out;
  throw RenderError{fmt::format("'{}' object is not iterable", value.type_name())};
}

List pairs_of(const Value& mapping) {
  if (mapping.as_mapping() == nullptr) throw RenderError{"Can only get item pairs from a mapping."};
  List out;
  for (const auto& [key, value] : mapping.as_mapping()->items)
    out.push_back(Value({Value::string(key), value}, ListKind::kTuple));
  return out;
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = container.as_text()) {
    if (item.as_text() == nullptr) {
      throw RenderError{"'in <string>' requires a string as left operand, not " + item.type_name()};
    }
    spend_search(text->size(), item.as_text()->size());
    return text->bytes().find(item.as_text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.as_mapping()) {
    return item.as_text() != nullptr && dict->find(item.as_text()->bytes()) != nullptr;
  }
  const List items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(other, item); });
}

Value get_attribute(const Value& object, const std::string& name) {
  if (const Loop* loop = object.as_loop()) {
    if (auto value = loop_attribute(*loop, name)) return std::move(*value);
  }
  const Dict* dict = object.as_dict();
  if (dict != nullptr && dict->is_namespace) {
    const Value* found = dict->find(name);
    return found != nullptr ? *found : Value(Undefined{name});
  }
  if (object.is_group() && (name == "grouper" || name == "list")) return (*object.as_list())[name == "list" ? 1 : 0];
  if (auto method = find_method(object, name)) return std::move(*method);
  if (dict != nullptr) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return no_member(object, name);
}

Value get_item(const Value& object, const Value& key) {
  if (key.is_whole() && (object.is_indexable() || object.as_text() != nullptr)) {
    const std::vector<std::size_t> positions =
        object.as_text() != nullptr ? char_positions(object.as_text()->bytes()) : std::vector<std::size_t>();
    const auto size =
        static_cast<std::int64_t>(object.as_list() != nullptr ? object.as_list()->size() : positions.size() - 1);
    const std::int64_t index = key.whole() < 0 ? key.whole() + size : key.whole();
    if (index < 0 || index >= size)
      return Undefined{fmt::format("{} object has no element {}", object.type_name(), key.whole())};
    const auto at = static_cast<std::size_t>(index);
    if (object.as_list() != nullptr) return (*object.as_list())[at];
    return object.as_text()->slice(positions[at], positions[at + 1]);
  }
  if (key.as_text() == nullptr) return no_member(object, key.str().bytes());
  const std::string& name = key.as_text()->bytes();
  if (const Dict* dict = object.as_dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return get_attribute(object, name);
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (const Text* text = object.as_text()) return slice_text(*text, start, stop, step);
  const List* list = object.as_list();
  object.check_defined();
  if (list == nullptr || !object.is_indexable())
    throw RenderError{fmt::format("'{}' object cannot be sliced", object.type_name())};
  List out;
  slice_range(start, stop, step, list->size()).for_each([&](std::size_t i) { out.push_back((*list)[i]); });
  return {std::move(out), object.list_kind()};
}

bool is_space(std::uint32_t code) {
  if ((code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85) return true;
  const utf8proc_category_t category = category_of(code);
  return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
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
  bool begins = true;  // start of a word, or of the text
  std::size_t at = 0;
  for (const Text::Run& run : text.runs()) {
    std::string part;
    while (at < run.end) {
      const Utf8Char c = utf8_char(text.bytes(), at);
      const bool up = to == Case::kUpper || (to != Case::kLower && begins);
      if (!up)
        append_lower(part, text.bytes(), at, c.code_point);
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
