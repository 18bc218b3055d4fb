// Filters and tests.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "builtins.h"
#include "lora_train/base/text.h"
#include "strings.h"
#include "value.h"

namespace lora_train::tokenizer::jinja {
namespace {

Value length_of(const Value& input, const Arguments&) {
  if (const Text* text = input.as_text()) {
    spend_bytes(text->size());
    return Value::integer(count_chars(text->bytes()));
  }
  if (const List* list = input.as_list(); list != nullptr && !input.is_generator()) return Value::integer(list->size());
  if (const Dict* dict = input.as_dict(); dict != nullptr && !dict->is_namespace)
    return Value::integer(dict->items.size());
  if (const Loop* loop = input.as_loop()) return Value::integer(loop->items.size());
  if (input.is_undefined()) return std::int64_t{0};
  throw RenderError{fmt::format("object of type '{}' has no len()", input.type_name())};
}

Value first_filter(const Value& input, const Arguments&) {
  if (input.is_generator() && !input.as_list()->empty()) {
    List& rest = *std::get<std::shared_ptr<List>>(input.data);
    Value first = rest.front();
    spend_bytes(sizeof(Value) * rest.size());
    rest.erase(rest.begin());
    return first;
  }
  const List items = iterate(input);
  return items.empty() ? Value(Undefined{"first item of an empty sequence"}) : items.front();
}

Value last_filter(const Value& input, const Arguments&) {
  if (input.is_generator()) throw RenderError{"'generator' object is not reversible"};
  const List items = iterate(input);
  return items.empty() ? Value(Undefined{"last item of an empty sequence"}) : items.back();
}

// a.b.0 as attribute filters spell it.
Value by_path(Value value, const Value& attribute, const Value* fallback = nullptr) {
  const auto step = [&](const Value& part) {
    value = get_item(value, part);
    if (value.is_undefined() && fallback != nullptr && !fallback->is_none()) value = *fallback;
  };
  if (attribute.as_text() == nullptr) {
    step(attribute);
    return value;
  }
  for (const Value& part : split_by(*attribute.as_text(), ".", -1, false)) {
    std::int64_t index = 0;
    const std::string& text = part.as_text()->bytes();
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), index);
    const bool is_index = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && index >= 0;
    step(is_index ? Value(index) : part);
  }
  return value;
}

Arguments rest_of(const Arguments& arguments, std::size_t from) {
  Arguments rest;
  for (std::size_t i = from; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  rest.named = arguments.named;
  return rest;
}

// select, reject, selectattr, rejectattr.
Value pick(const Value& input, const Arguments& arguments, bool by_attribute, bool keep) {
  List out;
  const std::size_t at = by_attribute ? 1 : 0;
  std::string test;
  if (arguments.positional.size() > at) {
    test = arguments.positional[at].str().bytes();
    if (!is_test(test)) throw RenderError{fmt::format("test \"{}\" is not supported", test), true};
  }
  const Value attribute = by_attribute ? required(arguments, 0, "attribute") : Value();
  const Arguments rest = rest_of(arguments, at + 1);
  for (Value& item : iterate(input)) {
    const Value subject = by_attribute ? by_path(item, attribute) : item;
    const bool passes = test.empty() ? subject.truth() : apply_test(test, subject, rest);
    if (passes == keep) out.push_back(std::move(item));
  }
  return {std::move(out), ListKind::kGenerator};
}

Value map_filter(const Value& input, const Arguments& arguments) {
  List out;
  const Value* attribute = arguments.positional.empty() ? arguments.get(0, "attribute") : nullptr;
  if (attribute != nullptr) check_arguments("map", arguments, {"attribute", "default"});
  std::string name;
  if (attribute == nullptr) {
    name = required(arguments, 0, "filter").str().bytes();
    if (!is_filter(name)) throw RenderError{fmt::format("filter \"{}\" is not supported", name), true};
  }
  const Value* fallback = arguments.get(99, "default");
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : iterate(input)) {
    out.push_back(attribute != nullptr ? by_path(item, *attribute, fallback) : apply_filter(name, item, rest));
  }
  return {std::move(out), ListKind::kGenerator};
}

Value join_filter(const Value& input, const Arguments& arguments) {
  const Value* separator = arguments.get(0, "d");
  List items = iterate(input);
  if (const Value* attribute = arguments.get(1, "attribute"); attribute != nullptr && !attribute->is_none()) {
    for (Value& item : items) item = by_path(item, *attribute);
  }
  return join_texts(items, separator == nullptr ? Text() : separator->str());
}

Value reverse_filter(const Value& input, const Arguments&) {
  if (input.as_text() != nullptr) return get_slice(input, None{}, None{}, std::int64_t{-1});
  List items = iterate(input);
  std::reverse(items.begin(), items.end());
  return {std::move(items), ListKind::kGenerator};
}

// The key that sort, unique, min and max compare: an attribute of the item; strings ignore case unless requested.
class SortKey {
 public:
  SortKey(const Arguments& arguments, std::size_t index_of_case, const Value* attribute)
      : with_case_(flag(arguments, index_of_case, "case_sensitive")) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (attribute->as_text() != nullptr)
      paths_ = split_by(*attribute->as_text(), ",", -1, false);
    else
      paths_ = {*attribute};
  }

  Value operator()(const Value& item) const {
    if (paths_.size() <= 1) return folded(paths_.empty() ? item : by_path(item, paths_[0]));
    List parts;
    for (const Value& path : paths_) parts.push_back(folded(by_path(item, path)));
    return parts;
  }

 private:
  Value folded(const Value& value) const {
    if (with_case_ || value.as_text() == nullptr) return value;
    return change_case(*value.as_text(), Case::kLower);
  }

  bool with_case_;
  List paths_;
};

template <class Key>
List sorted(List items, const Key& key, bool descending) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value item_key = key(item);
    keyed.emplace_back(std::move(item_key), std::move(item));
  }
  const auto less = [&](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; };
  for (std::size_t i = 1; i < keyed.size(); ++i) less(keyed[0], keyed[i]);  // refuses unordered values first
  if (descending)
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return less(b, a); });
  else
    std::stable_sort(keyed.begin(), keyed.end(), less);
  List out;
  for (auto& [unused, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort_filter(const Value& input, const Arguments& arguments) {
  return sorted(iterate(input), SortKey(arguments, 1, arguments.get(2, "attribute")), flag(arguments, 0, "reverse"));
}

List pairs_of(const Value& input) {
  if (input.as_dict() == nullptr || input.as_dict()->is_namespace)
    throw RenderError{"Can only get item pairs from a mapping."};
  List out;
  for (const auto& [key, value] : input.as_dict()->items) {
    out.push_back(Value({Value::string(key), value}, ListKind::kTuple));
  }
  return out;
}

Value items_filter(const Value& input, const Arguments&) {
  return {input.is_undefined() ? List() : pairs_of(input), ListKind::kGenerator};
}

Value dictsort_filter(const Value& input, const Arguments& arguments) {
  const Value* by = arguments.get(1, "by");
  const std::string what = by == nullptr ? "key" : by->str().bytes();
  if (what != "key" && what != "value") throw RenderError{"You can only sort by either \"key\" or \"value\""};
  const Value position = std::int64_t{what == "key" ? 0 : 1};
  return sorted(pairs_of(input), SortKey(arguments, 0, &position), flag(arguments, 2, "reverse"));
}

Value unique_filter(const Value& input, const Arguments& arguments) {
  const SortKey key(arguments, 0, arguments.get(1, "attribute"));
  List out, seen;
  for (Value& item : iterate(input)) {
    const Value item_key = key(item);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(other, item_key); })) continue;
    seen.push_back(item_key);
    out.push_back(std::move(item));
  }
  return {std::move(out), ListKind::kGenerator};
}

Value groupby_filter(const Value& input, const Arguments& arguments) {
  const Value& attribute = required(arguments, 0, "attribute");
  const Value* fallback = arguments.get(1, "default");
  const bool with_case = flag(arguments, 2, "case_sensitive");
  const auto key = [&](const Value& item) {
    Value value = by_path(item, attribute, fallback);
    return with_case || value.as_text() == nullptr ? value : Value(change_case(*value.as_text(), Case::kLower));
  };
  List groups, group;
  Value group_key;
  const auto close_group = [&] {
    if (group.empty()) return;
    Value grouper = by_path(group.front(), attribute, fallback);
    groups.push_back(Value::group(std::move(grouper), std::exchange(group, List())));
  };
  for (Value& item : sorted(iterate(input), key, false)) {
    Value item_key = key(item);
    if (!group.empty() && !equal(group_key, item_key)) close_group();
    group_key = std::move(item_key);
    group.push_back(std::move(item));
  }
  close_group();
  return groups;
}

Value sum_filter(const Value& input, const Arguments& arguments) {
  const Value* attribute = arguments.get(0, "attribute");
  const Value* start = arguments.get(1, "start");
  Value total = start == nullptr ? Value(std::int64_t{0}) : *start;
  for (const Value& item : iterate(input)) {
    total = binary("+", total, attribute == nullptr || attribute->is_none() ? item : by_path(item, *attribute));
  }
  return total;
}

template <int kSign>
Value extreme_filter(const Value& input, const Arguments& arguments) {
  const SortKey key(arguments, 0, arguments.get(1, "attribute"));
  const List items = iterate(input);
  if (items.empty()) return Undefined{"extreme of an empty sequence"};
  std::size_t best = 0;
  Value best_key = key(items[0]);
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value item_key = key(items[i]);
    if (compare(item_key, best_key) * kSign <= 0) continue;
    best = i;
    best_key = std::move(item_key);
  }
  return items[best];
}

Value batch_filter(const Value& input, const Arguments& arguments) {
  const std::int64_t size = integer_argument(arguments, 0, "linecount", 0);
  const Value* fill = arguments.get(1, "fill_with");
  if (size < 1 || size > 100000) throw RenderError{"batch: linecount is not in 1..100000"};
  List out, line;
  for (Value& item : iterate(input)) {
    if (line.size() == static_cast<std::size_t>(size)) out.push_back(std::exchange(line, List()));
    line.push_back(std::move(item));
  }
  if (line.empty()) return {std::move(out), ListKind::kGenerator};
  if (fill != nullptr && !fill->is_none()) line.resize(static_cast<std::size_t>(size), *fill);
  out.push_back(std::move(line));
  return {std::move(out), ListKind::kGenerator};
}

using Test = bool (*)(const Value&, const Arguments&);

bool is_equal(const Value& v, const Arguments& a) { return equal(v, required(a, 0, "other")); }
bool is_unequal(const Value& v, const Arguments& a) { return !is_equal(v, a); }
bool is_less(const Value& v, const Arguments& a) { return compare(v, required(a, 0, "other")) < 0; }
bool is_more(const Value& v, const Arguments& a) { return compare(v, required(a, 0, "other")) > 0; }
bool is_at_most(const Value& v, const Arguments& a) { return !is_more(v, a); }
bool is_at_least(const Value& v, const Arguments& a) { return !is_less(v, a); }
bool is_same(const Value& v, const Arguments& a) {
  const Value& other = required(a, 0, "other");
  return v.data.index() == other.data.index() && equal(v, other);
}
bool has_remainder(const Value& v, const Value& divisor, std::int64_t remainder) {
  return equal(binary("%", v, divisor), remainder);
}
// An undefined value has __len__, __iter__, __getitem__ and __call__ in Jinja.
bool is_sequence(const Value& v, const Arguments&) {
  return v.is_indexable() || v.as_text() != nullptr || v.is_undefined() ||
         (v.as_dict() != nullptr && v.as_namespace() == nullptr);
}
bool is_iterable(const Value& v, const Arguments& a) {
  return is_sequence(v, a) || v.as_list() != nullptr || v.as_loop() != nullptr;
}
bool is_cased(const Value& v, Case to) {
  const Text text = v.str();
  return change_case(text, to).bytes() == text.bytes() &&
         change_case(text, to == Case::kLower ? Case::kUpper : Case::kLower).bytes() != text.bytes();
}

const std::unordered_map<std::string, Builtin<Test>>& tests() {
  static const std::unordered_map<std::string, Builtin<Test>> table = {
      {"defined", {[](const Value& v, const Arguments&) { return !v.is_undefined(); }}},
      {"undefined", {[](const Value& v, const Arguments&) { return v.is_undefined(); }}},
      {"none", {[](const Value& v, const Arguments&) { return v.is_none(); }}},
      {"string", {[](const Value& v, const Arguments&) { return v.as_text() != nullptr; }}},
      {"number", {[](const Value& v, const Arguments&) { return v.is_number(); }}},
      {"integer", {[](const Value& v, const Arguments&) { return v.as_int() != nullptr; }}},
      {"float", {[](const Value& v, const Arguments&) { return v.as_double() != nullptr; }}},
      {"boolean", {[](const Value& v, const Arguments&) { return v.as_bool() != nullptr; }}},
      {"true", {[](const Value& v, const Arguments&) { return v.as_bool() != nullptr && *v.as_bool(); }}},
      {"false", {[](const Value& v, const Arguments&) { return v.as_bool() != nullptr && !*v.as_bool(); }}},
      {"mapping",
       {[](const Value& v, const Arguments&) { return v.as_dict() != nullptr && v.as_namespace() == nullptr; }}},
      {"iterable", {is_iterable}},
      {"sequence", {is_sequence}},
      {"callable", {[](const Value& v, const Arguments&) {
         return v.as_callable() != nullptr || v.as_loop() != nullptr || v.is_undefined();
       }}},
      {"odd", {[](const Value& v, const Arguments&) { return has_remainder(v, std::int64_t{2}, 1); }}},
      {"even", {[](const Value& v, const Arguments&) { return has_remainder(v, std::int64_t{2}, 0); }}},
      {"divisibleby",
       {[](const Value& v, const Arguments& a) { return has_remainder(v, required(a, 0, "num"), 0); }, {"num"}}},
      {"eq", {is_equal, {"other"}}},
      {"equalto", {is_equal, {"other"}}},
      {"==", {is_equal, {"other"}}},
      {"sameas", {is_same, {"other"}}},
      {"ne", {is_unequal, {"other"}}},
      {"!=", {is_unequal, {"other"}}},
      {"lt", {is_less, {"other"}}},
      {"lessthan", {is_less, {"other"}}},
      {"<", {is_less, {"other"}}},
      {"gt", {is_more, {"other"}}},
      {"greaterthan", {is_more, {"other"}}},
      {">", {is_more, {"other"}}},
      {"le", {is_at_most, {"other"}}},
      {"<=", {is_at_most, {"other"}}},
      {"ge", {is_at_least, {"other"}}},
      {">=", {is_at_least, {"other"}}},
      {"in", {[](const Value& v, const Arguments& a) { return contains(required(a, 0, "seq"), v); }, {"seq"}}},
      {"lower", {[](const Value& v, const Arguments&) { return is_cased(v, Case::kLower); }}},
      {"upper", {[](const Value& v, const Arguments&) { return is_cased(v, Case::kUpper); }}},
  };
  return table;
}

Value tojson_filter(const Value& input, const Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = flag(arguments, 0, "ensure_ascii");
  style.sort_keys = flag(arguments, 3, "sort_keys");
  if (const Value* indent = arguments.get(1, "indent"); indent != nullptr && !indent->is_none()) {
    const std::int64_t width = indent->is_whole() ? std::max<std::int64_t>(indent->whole(), 0) : 0;
    if (width > 256) throw RenderError{"tojson: an indent beyond 256 is not supported", true};
    style.indent =
        indent->as_text() != nullptr ? indent->as_text()->bytes() : std::string(static_cast<std::size_t>(width), ' ');
    style.item_separator = ",";
  }
  if (const Value* separators = arguments.get(2, "separators"); separators != nullptr && !separators->is_none()) {
    const List pair = iterate(*separators);
    if (pair.size() != 2 || pair[0].as_text() == nullptr || pair[1].as_text() == nullptr)
      throw RenderError{"tojson: separators must be two strings"};
    style.item_separator = pair[0].as_text()->bytes();
    style.key_separator = pair[1].as_text()->bytes();
  }
  return to_json(input, style);
}

Value default_filter(const Value& input, const Arguments& arguments) {
  const bool replace_it = input.is_undefined() || (flag(arguments, 1, "boolean") && !input.truth());
  if (!replace_it) return input;
  const Value* fallback = arguments.get(0, "default_value");
  return fallback != nullptr ? *fallback : Value(Text());
}

Value trim_filter(const Value& input, const Arguments& arguments) {
  const Value* chars = arguments.get(0, "chars");
  if (chars == nullptr || chars->is_none()) return strip(input.str(), std::nullopt, true, true);
  if (chars->as_text() == nullptr) throw RenderError{"strip arg must be None or str"};
  return strip(input.str(), chars->as_text()->bytes(), true, true);
}

template <Case kCase>
Value case_filter(const Value& input, const Arguments&) {
  return change_case(input.str(), kCase);
}

// The text as Python's int() and float() read it: no surrounding white space, no underscores between digits.
std::string number_text(const Text& text) {
  std::string out = strip(text, std::nullopt, true, true).bytes();
  for (std::size_t i = 1; i + 1 < out.size(); ++i) {
    const auto is_digit = [&](std::size_t at) { return out[at] >= '0' && out[at] <= '9'; };
    if (out[i] == '_' && is_digit(i - 1) && is_digit(i + 1)) out.erase(i, 1);
  }
  if (out.size() > 1 && out[0] == '+' && out[1] != '-') out.erase(0, 1);
  return out;
}

std::optional<double> parse_float(const Text& text) {
  const std::string digits = number_text(text);
  double value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (parsed.ptr != digits.data() + digits.size() || digits.empty() || digits.find('(') != std::string::npos)
    return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range)
    throw RenderError{fmt::format("the number {} is not supported", digits.substr(0, 40)), true};
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

Value truncated(double value) {
  if (std::isinf(value)) throw RenderError{"cannot convert float infinity to integer"};
  if (std::fabs(value) >= 9.2e18) throw RenderError{"an integer grew beyond 64 bits", true};
  return static_cast<std::int64_t>(value);
}

Value to_integer(const Value& input, const Arguments& arguments) {
  if (integer_argument(arguments, 1, "base", 10) != 10) throw RenderError{"int with a base is not supported", true};
  if (input.is_whole()) return input.whole();
  if (input.as_double() != nullptr && !std::isnan(*input.as_double())) return truncated(*input.as_double());
  if (input.as_text() != nullptr) {
    const std::string digits = number_text(*input.as_text());
    std::int64_t value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (parsed.ptr == digits.data() + digits.size() && parsed.ec == std::errc::result_out_of_range)
      throw RenderError{"an integer grew beyond 64 bits", true};
    if (parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size()) return value;
    const auto real = parse_float(*input.as_text());
    if (real && std::isfinite(*real)) return truncated(*real);
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback != nullptr ? *fallback : Value(std::int64_t{0});
}

Value to_float(const Value& input, const Arguments& arguments) {
  if (input.is_number()) return input.number();
  if (input.as_text() != nullptr) {
    if (const auto value = parse_float(*input.as_text())) return *value;
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Value abs_filter(const Value& input, const Arguments&) {
  if (!input.is_number()) throw RenderError{fmt::format("bad operand type for abs(): '{}'", input.type_name())};
  if (!input.is_whole()) return std::fabs(input.number());
  if (input.whole() == INT64_MIN) throw RenderError{"an integer grew beyond 64 bits", true};
  return input.whole() < 0 ? -input.whole() : input.whole();
}

Value round_filter(const Value& input, const Arguments& arguments) {
  const std::int64_t precision = integer_argument(arguments, 0, "precision", 0);
  const Value* given = arguments.get(1, "method");
  const std::string method = given == nullptr ? "common" : given->str().bytes();
  if (method != "common" && method != "ceil" && method != "floor")
    throw RenderError{"method must be common, ceil or floor"};
  if (!input.is_number()) throw RenderError{fmt::format("type {} cannot be rounded", input.type_name())};
  if (precision < 0 || precision > 15) throw RenderError{"round with a precision outside 0..15 is not supported", true};
  if (method == "common") {
    if (input.is_whole() || !std::isfinite(input.number())) return input.is_whole() ? Value(input.whole()) : input;
    return std::strtod(string_printf("%.*f", static_cast<int>(precision), input.number()).c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = input.number() * scale;
  if (!std::isfinite(scaled)) throw RenderError{"cannot convert float to integer"};
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value indent_filter(const Value& input, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  if (input.as_text() == nullptr) throw RenderError{"indent needs a string"};
  if (width != nullptr && width->as_text() == nullptr && !width->is_whole())
    throw RenderError{"indent: width must be a number"};
  const std::int64_t spaces = width == nullptr || !width->is_whole() ? 4 : std::max<std::int64_t>(width->whole(), 0);
  if (spaces > 256) throw RenderError{"an indent beyond 256 is not supported", true};
  const std::string margin = width != nullptr && width->as_text() != nullptr
                                 ? width->as_text()->bytes()
                                 : std::string(static_cast<std::size_t>(spaces), ' ');
  Text with_end = *input.as_text();
  with_end.append("\n", kTemplate);
  Text out;
  bool is_first = true;
  for (const Value& line : split_lines(with_end, false)) {
    if (!is_first) out.append("\n", kTemplate);
    const bool wanted =
        is_first ? flag(arguments, 1, "first") : !line.as_text()->empty() || flag(arguments, 2, "blank");
    if (wanted) out.append(margin, kTemplate);
    out.append(*line.as_text());
    is_first = false;
  }
  return out;
}

Value replace_filter(const Value& input, const Arguments& arguments) {
  return replace(input.str(), required(arguments, 0, "old").str().bytes(), required(arguments, 1, "new").str(),
                 integer_argument(arguments, 2, "count", -1));
}

// The filter format: named arguments make a mapping, others a tuple, for % to format.
Value format_filter(const Value& input, const Arguments& arguments) {
  if (arguments.named.empty()) return percent_format(input.str(), Value(arguments.positional, ListKind::kTuple));
  if (!arguments.positional.empty())
    throw RenderError{"can't handle positional and keyword arguments at the same time"};
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(name, value);
  return percent_format(input.str(), named);
}

using Filter = Value (*)(const Value&, const Arguments&);

const std::unordered_map<std::string, Builtin<Filter>>& filters() {
  static const std::unordered_map<std::string, Builtin<Filter>> table = {
      {"length", {length_of}},
      {"count", {length_of}},
      {"first", {first_filter}},
      {"last", {last_filter}},
      {"join", {join_filter, {"d", "attribute"}}},
      {"map", {map_filter, {"*"}}},
      {"reverse", {reverse_filter}},
      {"sort", {sort_filter, {"reverse", "case_sensitive", "attribute"}}},
      {"items", {items_filter}},
      {"dictsort", {dictsort_filter, {"case_sensitive", "by", "reverse"}}},
      {"unique", {unique_filter, {"case_sensitive", "attribute"}}},
      {"groupby", {groupby_filter, {"attribute", "default", "case_sensitive"}}},
      {"sum", {sum_filter, {"attribute", "start"}}},
      {"min", {extreme_filter<-1>, {"case_sensitive", "attribute"}}},
      {"max", {extreme_filter<1>, {"case_sensitive", "attribute"}}},
      {"batch", {batch_filter, {"linecount", "fill_with"}}},
      {"list", {[](const Value& v, const Arguments&) { return Value(iterate(v)); }}},
      {"select", {[](const Value& v, const Arguments& a) { return pick(v, a, false, true); }, {"*"}}},
      {"reject", {[](const Value& v, const Arguments& a) { return pick(v, a, false, false); }, {"*"}}},
      {"selectattr", {[](const Value& v, const Arguments& a) { return pick(v, a, true, true); }, {"*"}}},
      {"rejectattr", {[](const Value& v, const Arguments& a) { return pick(v, a, true, false); }, {"*"}}},
      {"tojson", {tojson_filter, {"ensure_ascii", "indent", "separators", "sort_keys"}}},
      {"default", {default_filter, {"default_value", "boolean"}}},
      {"d", {default_filter, {"default_value", "boolean"}}},
      {"trim", {trim_filter, {"chars"}}},
      {"upper", {case_filter<Case::kUpper>}},
      {"lower", {case_filter<Case::kLower>}},
      {"title", {case_filter<Case::kWordBegins>}},
      {"capitalize", {case_filter<Case::kCapitalize>}},
      {"int", {to_integer, {"default", "base"}}},
      {"float", {to_float, {"default"}}},
      {"abs", {abs_filter}},
      {"round", {round_filter, {"precision", "method"}}},
      {"indent", {indent_filter, {"width", "first", "blank"}}},
      {"replace", {replace_filter, {"old", "new", "count"}}},
      {"format", {format_filter, {"*"}}},
      {"string", {[](const Value& v, const Arguments&) { return Value(v.str()); }}},
      {"safe", {[](const Value& v, const Arguments&) { return Value(v.str()); }}},
  };
  return table;
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(std::string(name)); }

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments) {
  static const std::vector<std::string_view> refuse_undefined = {"abs", "indent", "dictsort", "round",
                                                                 "int", "float",  "tojson"};
  if (input.is_undefined() &&
      std::find(refuse_undefined.begin(), refuse_undefined.end(), name) != refuse_undefined.end()) {
    throw RenderError{fmt::format("'{}' is undefined", std::get<Undefined>(input.data).name)};
  }
  const Builtin<Filter>& filter = filters().at(name);
  check_arguments("filter " + name, arguments, filter.parameters);
  return filter.function(input, arguments);
}

bool is_test(std::string_view name) { return tests().contains(std::string(name)); }

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  const Builtin<Test>& test = tests().at(name);
  check_arguments("test " + name, arguments, test.parameters);
  return test.function(input, arguments);
}

}  // namespace lora_train::tokenizer::jinja
