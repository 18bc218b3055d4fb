// Filters and tests.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja.h"
#include "lora_train/base/text.h"

namespace lora_train::tokenizer::jinja {
namespace {

Value length_of(const Value& input, const Call&) {
  if (const Text* text = input.as_text()) {
    spend_bytes(text->size());
    return Value::integer(count_chars(text->bytes()));
  }
  if (const List* list = input.as_list(); list != nullptr && !input.is_generator()) return Value::integer(list->size());
  if (const Dict* dict = input.as_mapping()) return Value::integer(dict->items.size());
  if (const Loop* loop = input.as_loop()) return Value::integer(loop->items.size());
  if (input.is_undefined()) return std::int64_t{0};
  throw RenderError{fmt::format("object of type '{}' has no len()", input.type_name())};
}

Value first_filter(const Value& input, const Call&) {
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

Value last_filter(const Value& input, const Call&) {
  if (input.is_generator()) throw RenderError{"'generator' object is not reversible"};
  const List items = iterate(input);
  return items.empty() ? Value(Undefined{"last item of an empty sequence"}) : items.back();
}

// a.b.0 as attribute filters spell it.
Value by_path(Value value, const Value& attribute, const Value& fallback = None{}) {
  const auto step = [&](const Value& part) {
    value = get_item(value, part);
    if (value.is_undefined() && !fallback.is_none()) value = fallback;
  };
  if (attribute.as_text() == nullptr) {
    step(attribute);
    return value;
  }
  for (const Value& part : split_by(*attribute.as_text(), ".", -1, false)) {
    const auto index = whole_number<std::int64_t>(part.as_text()->bytes());
    step(index && *index >= 0 ? Value(*index) : part);
  }
  return value;
}

// An item, or its attribute.
Value item_or_attribute(const Value& item, const Value& attribute) {
  return attribute.is_none() ? item : by_path(item, attribute);
}

Arguments rest_of(const Arguments& arguments, std::size_t from) {
  const List& all = arguments.positional;
  return {List(all.begin() + static_cast<std::ptrdiff_t>(std::min(from, all.size())), all.end()), arguments.named};
}

// select, reject, selectattr, rejectattr.
Value pick(const Value& input, const Arguments& arguments, bool by_attribute, bool keep) {
  List out;
  if (by_attribute && arguments.get(0, "attribute") == nullptr) throw RenderError{"missing argument: attribute"};
  const std::size_t at = by_attribute ? 1 : 0;
  std::string test;
  if (arguments.positional.size() > at) {
    test = arguments.positional[at].str().bytes();
    if (!is_test(test)) throw RenderError{fmt::format("test \"{}\" is not supported", test), true};
  }
  const Value attribute = by_attribute ? *arguments.get(0, "attribute") : None{};
  const Arguments rest = rest_of(arguments, at + 1);
  for (Value& item : iterate(input)) {
    const Value subject = by_attribute ? by_path(item, attribute) : item;
    const bool passes = test.empty() ? subject.truth() : apply_test(test, subject, rest);
    if (passes == keep) out.push_back(std::move(item));
  }
  return {std::move(out), ListKind::kGenerator};
}

Value map_by_attribute(const Value& input, const Call& call) {
  List out;
  for (const Value& item : iterate(input)) out.push_back(by_path(item, call[0], call[1]));
  return {std::move(out), ListKind::kGenerator};
}

Value map_filter(const Value& input, const Call& call) {
  static const Builtins by_attribute = {{"map", "attribute, default=none", map_by_attribute}};
  const Arguments& arguments = call.given;
  if (arguments.positional.empty() && arguments.get(0, "attribute") != nullptr)
    return by_attribute.call("map", "map", input, arguments);
  const Value* filter = arguments.get(0, "filter");
  if (filter == nullptr) throw RenderError{"missing argument: filter"};
  const std::string name = filter->str().bytes();
  if (!is_filter(name)) throw RenderError{fmt::format("filter \"{}\" is not supported", name), true};
  List out;
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : iterate(input)) out.push_back(apply_filter(name, item, rest));
  return {std::move(out), ListKind::kGenerator};
}

Value join_filter(const Value& input, const Call& call) {
  List items = iterate(input);
  for (Value& item : items) item = item_or_attribute(item, call[1]);
  return join_texts(items, call[0].str());
}

Value reverse_filter(const Value& input, const Call&) {
  if (input.as_text() != nullptr) return get_slice(input, None{}, None{}, std::int64_t{-1});
  List items = iterate(input);
  std::reverse(items.begin(), items.end());
  return {std::move(items), ListKind::kGenerator};
}

// The key that sort, unique, min and max compare: an attribute of the item; strings ignore case unless requested.
class SortKey {
 public:
  SortKey(bool with_case, const Value& attribute) : with_case_(with_case) {
    if (attribute.as_text() != nullptr)
      paths_ = split_by(*attribute.as_text(), ",", -1, false);
    else if (!attribute.is_none())
      paths_ = {attribute};
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
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return descending ? less(b, a) : less(a, b); });
  List out;
  for (auto& [unused, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort_filter(const Value& input, const Call& call) {
  return sorted(iterate(input), SortKey(call.flag(1), call[2]), call.flag(0));
}

Value items_filter(const Value& input, const Call&) {
  return {input.is_undefined() ? List() : pairs_of(input), ListKind::kGenerator};
}

Value dictsort_filter(const Value& input, const Call& call) {
  const std::string what = call[1].str().bytes();
  if (what != "key" && what != "value") throw RenderError{"You can only sort by either \"key\" or \"value\""};
  const Value position = std::int64_t{what == "key" ? 0 : 1};
  return sorted(pairs_of(input), SortKey(call.flag(0), position), call.flag(2));
}

Value unique_filter(const Value& input, const Call& call) {
  const SortKey key(call.flag(0), call[1]);
  List out, seen;
  for (Value& item : iterate(input)) {
    const Value item_key = key(item);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(other, item_key); })) continue;
    seen.push_back(item_key);
    out.push_back(std::move(item));
  }
  return {std::move(out), ListKind::kGenerator};
}

Value groupby_filter(const Value& input, const Call& call) {
  const SortKey fold(call.flag(2), None{});
  const auto grouper_of = [&](const Value& item) { return by_path(item, call[0], call[1]); };
  const auto key = [&](const Value& item) { return fold(grouper_of(item)); };
  const List items = sorted(iterate(input), key, false);
  List groups, group;
  for (std::size_t i = 0; i < items.size(); ++i) {
    group.push_back(items[i]);
    if (i + 1 < items.size() && equal(key(items[i]), key(items[i + 1]))) continue;
    Value grouper = grouper_of(group.front());
    groups.push_back(Value::group(std::move(grouper), std::exchange(group, List())));
  }
  return groups;
}

Value sum_filter(const Value& input, const Call& call) {
  Value total = call[1];
  for (const Value& item : iterate(input)) total = binary("+", total, item_or_attribute(item, call[0]));
  return total;
}

template <int kSign>
Value extreme_filter(const Value& input, const Call& call) {
  const SortKey key(call.flag(0), call[1]);
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

Value batch_filter(const Value& input, const Call& call) {
  const std::int64_t size = call.integer(0);
  if (size < 1 || size > 100000) throw RenderError{"batch: linecount is not in 1..100000"};
  List out, line;
  for (Value& item : iterate(input)) {
    if (line.size() == static_cast<std::size_t>(size)) out.push_back(std::exchange(line, List()));
    line.push_back(std::move(item));
  }
  if (line.empty()) return {std::move(out), ListKind::kGenerator};
  if (!call[1].is_none()) line.resize(static_cast<std::size_t>(size), call[1]);
  out.push_back(std::move(line));
  return {std::move(out), ListKind::kGenerator};
}

// "sameas" of Python's `is`: the same type, too.
bool is_same(const Value& v, const Call& c) { return v.data.index() == c[0].data.index() && equal(v, c[0]); }
bool has_remainder(const Value& v, const Value& divisor, std::int64_t remainder) {
  return equal(binary("%", v, divisor), remainder);
}
// An undefined value has __len__, __iter__, __getitem__ and __call__ in Jinja.
bool is_sequence(const Value& v) {
  return v.is_indexable() || v.as_text() != nullptr || v.is_undefined() || v.as_mapping() != nullptr;
}
bool is_cased(const Value& v, Case to) {
  const Text text = v.str();
  return change_case(text, to).bytes() == text.bytes() &&
         change_case(text, to == Case::kLower ? Case::kUpper : Case::kLower).bytes() != text.bytes();
}

const Builtins& tests() {
  static const Builtins table = {
      {"defined", "", [](auto& v, auto&) { return !v.is_undefined(); }},
      {"undefined", "", [](auto& v, auto&) { return v.is_undefined(); }},
      {"none", "", [](auto& v, auto&) { return v.is_none(); }},
      {"string", "", [](auto& v, auto&) { return v.as_text() != nullptr; }},
      {"number", "", [](auto& v, auto&) { return v.is_number(); }},
      {"integer", "", [](auto& v, auto&) { return v.as_int() != nullptr; }},
      {"float", "", [](auto& v, auto&) { return v.as_double() != nullptr; }},
      {"boolean", "", [](auto& v, auto&) { return v.as_bool() != nullptr; }},
      {"true", "", [](auto& v, auto&) { return v.as_bool() != nullptr && *v.as_bool(); }},
      {"false", "", [](auto& v, auto&) { return v.as_bool() != nullptr && !*v.as_bool(); }},
      {"mapping", "", [](auto& v, auto&) { return v.as_mapping() != nullptr; }},
      {"iterable", "",
       [](auto& v, auto&) { return is_sequence(v) || v.as_list() != nullptr || v.as_loop() != nullptr; }},
      {"sequence", "", [](auto& v, auto&) { return is_sequence(v); }},
      {"callable", "",
       [](auto& v, auto&) { return v.as_callable() != nullptr || v.as_loop() != nullptr || v.is_undefined(); }},
      {"odd", "", [](auto& v, auto&) { return has_remainder(v, std::int64_t{2}, 1); }},
      {"even", "", [](auto& v, auto&) { return has_remainder(v, std::int64_t{2}, 0); }},
      {"divisibleby", "num", [](auto& v, auto& c) { return has_remainder(v, c[0], 0); }},
      {"eq equalto ==", "other", [](auto& v, auto& c) { return equal(v, c[0]); }},
      {"ne !=", "other", [](auto& v, auto& c) { return !equal(v, c[0]); }},
      {"sameas", "other", is_same},
      {"lt lessthan <", "other", [](auto& v, auto& c) { return compare(v, c[0]) < 0; }},
      {"gt greaterthan >", "other", [](auto& v, auto& c) { return compare(v, c[0]) > 0; }},
      {"le <=", "other", [](auto& v, auto& c) { return compare(v, c[0]) <= 0; }},
      {"ge >=", "other", [](auto& v, auto& c) { return compare(v, c[0]) >= 0; }},
      {"in", "seq", [](auto& v, auto& c) { return contains(c[0], v); }},
      {"lower", "", [](auto& v, auto&) { return is_cased(v, Case::kLower); }},
      {"upper", "", [](auto& v, auto&) { return is_cased(v, Case::kUpper); }},
  };
  return table;
}

// `width` spaces, or the text itself.
std::string margin_of(const Value& width) {
  if (const Text* text = width.as_text()) return text->bytes();
  if (!width.is_whole()) throw RenderError{"an indent must be a number or a string, not " + width.type_name()};
  const std::int64_t spaces = std::max<std::int64_t>(width.whole(), 0);
  if (spaces > 256) throw RenderError{"an indent beyond 256 is not supported", true};
  return std::string(static_cast<std::size_t>(spaces), ' ');
}

Value tojson_filter(const Value& input, const Call& call) {
  JsonStyle style;
  style.ensure_ascii = call.flag(0);
  style.sort_keys = call.flag(3);
  if (const Value& indent = call[1]; !indent.is_none()) {
    style.indent = margin_of(indent);
    style.item_separator = ",";
  }
  if (!call[2].is_none()) {
    const List pair = iterate(call[2]);
    if (pair.size() != 2 || pair[0].as_text() == nullptr || pair[1].as_text() == nullptr)
      throw RenderError{"tojson: separators must be two strings"};
    style.item_separator = pair[0].as_text()->bytes();
    style.key_separator = pair[1].as_text()->bytes();
  }
  return to_json(input, style);
}

Value default_filter(const Value& input, const Call& call) {
  return input.is_undefined() || (call.flag(1) && !input.truth()) ? call[0] : input;
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

Value to_integer(const Value& input, const Call& call) {
  if (call.integer(1) != 10) throw RenderError{"int with a base is not supported", true};
  if (input.is_whole()) return input.whole();
  if (input.as_double() != nullptr && !std::isnan(*input.as_double())) return truncated(*input.as_double());
  if (input.as_text() != nullptr) {
    if (const auto whole = whole_number<std::int64_t>(number_text(*input.as_text()))) return *whole;
    const auto real = parse_float(*input.as_text());
    if (real && std::isfinite(*real)) return truncated(*real);
  }
  return call[0];
}

Value to_float(const Value& input, const Call& call) {
  if (input.is_number()) return input.number();
  if (input.as_text() != nullptr) {
    if (const auto value = parse_float(*input.as_text())) return *value;
  }
  return call[0];
}

Value round_filter(const Value& input, const Call& call) {
  const std::int64_t precision = call.integer(0);
  const std::string method = call[1].str().bytes();
  if (method != "common" && method != "ceil" && method != "floor")
    throw RenderError{"method must be common, ceil or floor"};
  if (!input.is_number()) throw RenderError{fmt::format("type {} cannot be rounded", input.type_name())};
  if (precision < 0 || precision > 15) throw RenderError{"round with a precision outside 0..15 is not supported", true};
  if (method == "common") {
    if (input.is_whole() || !std::isfinite(input.number())) return input.is_whole() ? Value(input.whole()) : input;
    return std::strtod(fmt::format("{:.{}f}", input.number(), static_cast<int>(precision)).c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = input.number() * scale;
  if (!std::isfinite(scaled)) throw RenderError{"cannot convert float to integer"};
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value indent_filter(const Value& input, const Call& call) {
  if (input.as_text() == nullptr) throw RenderError{"indent needs a string"};
  const std::string margin = margin_of(call[0]);
  Text with_end = *input.as_text();
  with_end.append("\n", kTemplate);
  Text out;
  bool is_first = true;
  for (const Value& line : split_lines(with_end, false)) {
    if (!is_first) out.append("\n", kTemplate);
    if (is_first ? call.flag(1) : !line.as_text()->empty() || call.flag(2)) out.append(margin, kTemplate);
    out.append(*line.as_text());
    is_first = false;
  }
  return out;
}

// The filter format: named arguments make a mapping, others a tuple, for % to format.
Value format_filter(const Value& input, const Call& call) {
  const Arguments& arguments = call.given;
  if (arguments.named.empty()) return percent_format(input.str(), Value(arguments.positional, ListKind::kTuple));
  if (!arguments.positional.empty())
    throw RenderError{"can't handle positional and keyword arguments at the same time"};
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(name, value);
  return percent_format(input.str(), named);
}

const Builtins& filters() {
  static const Builtins table = {
      {"length count", "", length_of},
      {"first", "", first_filter},
      {"last", "", last_filter},
      {"join", "d='', attribute=none", join_filter},
      {"map", "*", map_filter},
      {"reverse", "", reverse_filter},
      {"sort", "reverse=false, case_sensitive=false, attribute=none", sort_filter},
      {"items", "", items_filter},
      {"dictsort", "case_sensitive=false, by='key', reverse=false", dictsort_filter},
      {"unique", "case_sensitive=false, attribute=none", unique_filter},
      {"groupby", "attribute, default=none, case_sensitive=false", groupby_filter},
      {"sum", "attribute=none, start=0", sum_filter},
      {"min", "case_sensitive=false, attribute=none", extreme_filter<-1>},
      {"max", "case_sensitive=false, attribute=none", extreme_filter<1>},
      {"batch", "linecount, fill_with=none", batch_filter},
      {"list", "", [](auto& v, auto&) { return iterate(v); }},
      {"select", "*", [](auto& v, auto& c) { return pick(v, c.given, false, true); }},
      {"reject", "*", [](auto& v, auto& c) { return pick(v, c.given, false, false); }},
      {"selectattr", "*", [](auto& v, auto& c) { return pick(v, c.given, true, true); }},
      {"rejectattr", "*", [](auto& v, auto& c) { return pick(v, c.given, true, false); }},
      {"tojson", "ensure_ascii=false, indent=none, separators=none, sort_keys=false", tojson_filter},
      {"default d", "default_value='', boolean=false", default_filter},
      {"trim", "chars=none", [](auto& v, auto& c) { return strip(v.str(), c.text(0), true, true); }},
      {"upper", "", [](auto& v, auto&) { return change_case(v.str(), Case::kUpper); }},
      {"lower", "", [](auto& v, auto&) { return change_case(v.str(), Case::kLower); }},
      {"title", "", [](auto& v, auto&) { return change_case(v.str(), Case::kWordBegins); }},
      {"capitalize", "", [](auto& v, auto&) { return change_case(v.str(), Case::kCapitalize); }},
      {"int", "default=0, base=10", to_integer},
      {"float", "default=0.0", to_float},
      {"abs", "", [](auto& v, auto&) { return signed_number(v, v.is_number() && std::signbit(v.number())); }},
      {"round", "precision=0, method='common'", round_filter},
      {"indent", "width=4, first=false, blank=false", indent_filter},
      {"replace", "old, new, count=-1",
       [](auto& v, auto& c) { return replace(v.str(), c[0].str().bytes(), c[1].str(), c.integer(2)); }},
      {"format", "*", format_filter},
      {"string safe", "", [](auto& v, auto&) { return v.str(); }},
  };
  return table;
}

}  // namespace

bool is_filter(const std::string& name) { return filters().contains(name); }

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments) {
  for (const char* strict : {"abs", "indent", "dictsort", "round", "int", "float", "tojson"}) {
    if (input.is_undefined() && name == strict) input.check_defined();
  }
  return filters().call(name, "filter " + name, input, arguments);
}

bool is_test(const std::string& name) { return tests().contains(name); }

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  return *tests().call(name, "test " + name, input, arguments).as_bool();
}

}  // namespace lora_train::tokenizer::jinja
