// Filters and tests.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "builtins.h"
#include "strings.h"

namespace lora_train::tokenizer::jinja {
namespace {

using Filter = Value (*)(const Value&, const Arguments&);
using Test = bool (*)(const Value&, const Arguments&);

[[noreturn]] void undefined_input(const Value& input) {
  throw RenderError{"'" + std::get<Undefined>(input.data).name + "' is undefined"};
}

const Value& required(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr) throw RenderError{std::string("missing argument: ") + name};
  return *value;
}

bool flag(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = arguments.get(index, name);
  return value != nullptr && value->truth();
}

Value length_of(const Value& input, const Arguments&) {
  if (const Text* text = input.as_text()) return Value::integer(char_positions(text->bytes()).size() - 1);
  if (const List* list = input.as_list()) return Value::integer(list->size());
  if (const Dict* dict = input.as_dict()) return Value::integer(dict->items.size());
  if (input.is_undefined()) return std::int64_t{0};
  throw RenderError{"object of type '" + input.type_name() + "' has no len()"};
}

Value tojson_filter(const Value& input, const Arguments& arguments) {
  if (input.is_undefined()) throw RenderError{"Object of type Undefined is not JSON serializable"};
  for (const auto& [name, value] : arguments.named) {
    if (name != "indent" && name != "ensure_ascii" && name != "sort_keys") {
      throw RenderError{"tojson(" + name + "=...) is not built", true};
    }
  }
  const Value* indent = arguments.get(1, "indent");
  if (arguments.positional.size() == 1) indent = nullptr;
  int width = -1;
  if (indent != nullptr && !indent->is_none()) {
    if (!indent->is_whole() || indent->whole() < 0 || indent->whole() > 16)
      throw RenderError{"tojson: indent is not in 0..16"};
    width = static_cast<int>(indent->whole());
  }
  const Value* ascii = arguments.get(0, "ensure_ascii");
  const Value* sort = arguments.get(99, "sort_keys");
  return Value::string(to_json(input, width, ascii != nullptr && ascii->truth(), sort != nullptr && sort->truth()));
}

Value default_filter(const Value& input, const Arguments& arguments) {
  const bool replace_it = input.is_undefined() || (flag(arguments, 1, "boolean") && !input.truth());
  if (!replace_it) return input;
  const Value* fallback = arguments.get(0, "default_value");
  return fallback != nullptr ? *fallback : Value(Text());
}

Value trim_filter(const Value& input, const Arguments& arguments) {
  const Value* chars = arguments.get(0, "chars");
  std::optional<std::string> set;
  if (chars != nullptr && chars->as_text() != nullptr) set = chars->as_text()->bytes();
  return strip(input.str(), set, true, true);
}

template <Case kCase>
Value case_filter(const Value& input, const Arguments&) {
  return change_case(input.str(), kCase);
}

Value first_filter(const Value& input, const Arguments&) {
  const List items = iterate(input);
  return items.empty() ? Value(Undefined{"first item of an empty sequence"}) : items.front();
}
Value last_filter(const Value& input, const Arguments&) {
  const List items = iterate(input);
  return items.empty() ? Value(Undefined{"last item of an empty sequence"}) : items.back();
}

// a.b.0 as attribute filters spell it.
Value by_path(Value value, const Value& attribute) {
  if (attribute.is_whole()) return get_item(value, attribute);
  for (const Value& part : split_by(attribute.str(), ".", -1, false)) {
    std::int64_t index = 0;
    const std::string& text = part.as_text()->bytes();
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), index);
    const bool is_index = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
    value = is_index ? get_item(value, index) : get_item(value, part);
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
  if (const Value* name = arguments.get(at, "test")) {
    test = name->str().bytes();
    if (!is_test(test)) throw RenderError{"test \"" + test + "\" is not built", true};
  }
  const Arguments rest = rest_of(arguments, at + 1);
  for (const Value& item : iterate(input)) {
    const Value subject = by_attribute ? by_path(item, required(arguments, 0, "attribute")) : item;
    const bool passes = test.empty() ? subject.truth() : apply_test(test, subject, rest);
    if (passes == keep) out.push_back(item);
  }
  return out;
}

Value map_filter(const Value& input, const Arguments& arguments) {
  List out;
  const Value* attribute = arguments.get(99, "attribute");
  std::string name;
  if (attribute == nullptr) {
    name = required(arguments, 0, "filter").str().bytes();
    if (!is_filter(name)) throw RenderError{"filter \"" + name + "\" is not built", true};
  }
  const Value* fallback = arguments.get(99, "default");
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : iterate(input)) {
    Value mapped = attribute != nullptr ? by_path(item, *attribute) : apply_filter(name, item, rest);
    out.push_back(mapped.is_undefined() && fallback != nullptr ? *fallback : std::move(mapped));
  }
  return out;
}

Value join_filter(const Value& input, const Arguments& arguments) {
  const Value* separator = arguments.get(0, "d");
  List items = iterate(input);
  if (const Value* attribute = arguments.get(1, "attribute")) {
    for (Value& item : items) item = by_path(item, *attribute);
  }
  return join_texts(items, separator == nullptr ? Text() : separator->str());
}

Value to_integer(const Value& input, const Arguments& arguments) {
  if (input.is_whole()) return input.whole();
  if (input.as_double() != nullptr && std::fabs(*input.as_double()) < 9e15)
    return static_cast<std::int64_t>(*input.as_double());
  if (input.as_text() != nullptr) {
    const Text stripped = strip(*input.as_text(), std::nullopt, true, true);
    const std::string& text = stripped.bytes();
    std::int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return value;
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback != nullptr ? *fallback : Value(std::int64_t{0});
}

Value to_float(const Value& input, const Arguments& arguments) {
  if (input.is_number()) return input.number();
  if (input.as_text() != nullptr) {
    const Text stripped = strip(*input.as_text(), std::nullopt, true, true);
    const std::string& text = stripped.bytes();
    double value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return value;
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Value abs_filter(const Value& input, const Arguments&) {
  if (!input.is_number()) throw RenderError{"bad operand type for abs(): '" + input.type_name() + "'"};
  if (!input.is_whole()) return std::fabs(input.number());
  if (input.whole() == INT64_MIN) throw RenderError{"an integer grew beyond 64 bits", true};
  return input.whole() < 0 ? -input.whole() : input.whole();
}

Value reverse_filter(const Value& input, const Arguments&) {
  if (input.as_text() != nullptr) return get_slice(input, None{}, None{}, std::int64_t{-1});
  List items = iterate(input);
  std::reverse(items.begin(), items.end());
  return items;
}

Value sorted(List items, const Value* attribute, bool descending) {
  const auto key = [&](const Value& item) { return attribute != nullptr ? by_path(item, *attribute) : item; };
  // Strings compare without case by default, as Jinja sorts.
  const auto less = [&](const Value& a, const Value& b) {
    const Value x = key(a), y = key(b);
    if (x.as_text() == nullptr || y.as_text() == nullptr) return compare(x, y) < 0;
    return change_case(*x.as_text(), Case::kLower).bytes() < change_case(*y.as_text(), Case::kLower).bytes();
  };
  for (const Value& item : items) less(items.front(), item);  // what has no order is refused before sorting
  if (descending)
    std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) { return less(b, a); });
  else
    std::stable_sort(items.begin(), items.end(), less);
  return items;
}

Value sort_filter(const Value& input, const Arguments& arguments) {
  const Value* attribute = arguments.get(2, "attribute");
  return sorted(iterate(input), attribute, flag(arguments, 0, "reverse"));
}

Value items_filter(const Value& input, const Arguments&) {
  if (input.is_undefined()) return List();
  if (input.as_dict() == nullptr) throw RenderError{"Can only get item pairs from a mapping."};
  List out;
  for (const auto& [key, value] : input.as_dict()->items) out.push_back(Value::tuple({Value::string(key), value}));
  return out;
}

Value dictsort_filter(const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.named.empty())
    throw RenderError{"dictsort with arguments is not built", true};
  const Value first = std::int64_t{0};
  return sorted(*items_filter(input, {}).as_list(), &first, false);
}

Value unique_filter(const Value& input, const Arguments&) {
  List out;
  for (const Value& item : iterate(input)) {
    if (std::none_of(out.begin(), out.end(), [&](const Value& seen) { return equal(seen, item); })) out.push_back(item);
  }
  return out;
}

Value indent_filter(const Value& input, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  const std::int64_t spaces = width == nullptr || !width->is_whole() ? 4 : width->whole();
  if (spaces < 0 || spaces > 256) throw RenderError{"indent: width is not in 0..256"};
  const std::string margin = width != nullptr && width->as_text() != nullptr
                                 ? width->as_text()->bytes()
                                 : std::string(static_cast<std::size_t>(spaces), ' ');
  Text out;
  bool first = true;
  for (const Value& line : split_by(input.str(), "\n", -1, false)) {
    if (!first) out.append("\n", kTemplate);
    const bool wanted = first ? flag(arguments, 1, "first") : !line.as_text()->empty() || flag(arguments, 2, "blank");
    if (wanted) out.append(margin, kTemplate);
    out.append(*line.as_text());
    check_text_size(out.size());
    first = false;
  }
  return out;
}

Value sum_filter(const Value& input, const Arguments&) {
  Value total = std::int64_t{0};
  for (const Value& item : iterate(input)) total = binary("+", total, item);
  return total;
}

template <int kSign>
Value extreme_filter(const Value& input, const Arguments&) {
  const List items = iterate(input);
  if (items.empty()) return Undefined{"extreme of an empty sequence"};
  const Value* best = &items.front();
  for (const Value& item : items) {
    if (compare(item, *best) * kSign > 0) best = &item;
  }
  return *best;
}

Value replace_filter(const Value& input, const Arguments& arguments) {
  const Value* count = arguments.get(2, "count");
  const std::int64_t limit = count != nullptr && count->is_whole() ? count->whole() : -1;
  const Value with = required(arguments, 1, "new").str();
  return replace(input.str(), required(arguments, 0, "old").str().bytes(), &with, limit);
}

const std::unordered_map<std::string, Filter>& filters() {
  static const std::unordered_map<std::string, Filter> table = {
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"length", length_of},
      {"count", length_of},
      {"default", default_filter},
      {"d", default_filter},
      {"first", first_filter},
      {"last", last_filter},
      {"join", join_filter},
      {"map", map_filter},
      {"int", to_integer},
      {"float", to_float},
      {"abs", abs_filter},
      {"upper", case_filter<Case::kUpper>},
      {"lower", case_filter<Case::kLower>},
      {"title", case_filter<Case::kTitle>},
      {"capitalize", case_filter<Case::kCapitalize>},
      {"reverse", reverse_filter},
      {"sort", sort_filter},
      {"items", items_filter},
      {"dictsort", dictsort_filter},
      {"unique", unique_filter},
      {"indent", indent_filter},
      {"sum", sum_filter},
      {"replace", replace_filter},
      {"min", extreme_filter<-1>},
      {"max", extreme_filter<1>},
      {"list", [](const Value& v, const Arguments&) { return Value(iterate(v)); }},
      {"string", [](const Value& v, const Arguments&) { return Value(v.str()); }},
      {"safe", [](const Value& v, const Arguments&) { return v; }},
      {"select", [](const Value& v, const Arguments& a) { return pick(v, a, false, true); }},
      {"reject", [](const Value& v, const Arguments& a) { return pick(v, a, false, false); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return pick(v, a, true, true); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return pick(v, a, true, false); }},
  };
  return table;
}

bool is_equal(const Value& v, const Arguments& a) { return equal(v, required(a, 0, "other")); }
bool is_unequal(const Value& v, const Arguments& a) { return !is_equal(v, a); }
bool is_less(const Value& v, const Arguments& a) { return compare(v, required(a, 0, "other")) < 0; }
bool is_more(const Value& v, const Arguments& a) { return compare(v, required(a, 0, "other")) > 0; }
bool is_at_most(const Value& v, const Arguments& a) { return !is_more(v, a); }
bool is_at_least(const Value& v, const Arguments& a) { return !is_less(v, a); }
bool is_divisible(const Value& v, const Arguments& a) {
  const Value remainder = binary("%", v, required(a, 0, "num"));
  return remainder.number() == 0.0;
}
bool is_sequence(const Value& v, const Arguments&) {
  return v.as_list() != nullptr || v.as_text() != nullptr || v.as_dict() != nullptr;
}

const std::unordered_map<std::string, Test>& tests() {
  static const std::unordered_map<std::string, Test> table = {
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"string", [](const Value& v, const Arguments&) { return v.as_text() != nullptr; }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"integer", [](const Value& v, const Arguments&) { return v.as_int() != nullptr; }},
      {"float", [](const Value& v, const Arguments&) { return v.as_double() != nullptr; }},
      {"boolean", [](const Value& v, const Arguments&) { return v.as_bool() != nullptr; }},
      {"true", [](const Value& v, const Arguments&) { return v.as_bool() != nullptr && *v.as_bool(); }},
      {"false", [](const Value& v, const Arguments&) { return v.as_bool() != nullptr && !*v.as_bool(); }},
      {"mapping", [](const Value& v, const Arguments&) { return v.as_dict() != nullptr; }},
      {"iterable", [](const Value& v, const Arguments& a) { return is_sequence(v, a) || v.is_undefined(); }},
      {"sequence", is_sequence},
      {"callable", [](const Value& v, const Arguments&) { return v.as_callable() != nullptr; }},
      {"odd",
       [](const Value& v, const Arguments&) { return !equal(binary("%", v, std::int64_t{2}), std::int64_t{0}); }},
      {"even",
       [](const Value& v, const Arguments&) { return equal(binary("%", v, std::int64_t{2}), std::int64_t{0}); }},
      {"divisibleby", is_divisible},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"==", is_equal},
      {"sameas", is_equal},
      {"ne", is_unequal},
      {"!=", is_unequal},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<", is_less},
      {"gt", is_more},
      {"greaterthan", is_more},
      {">", is_more},
      {"le", is_at_most},
      {"<=", is_at_most},
      {"ge", is_at_least},
      {">=", is_at_least},
      {"in", [](const Value& v, const Arguments& a) { return contains(required(a, 0, "seq"), v); }},
      {"lower",
       [](const Value& v, const Arguments&) { return change_case(v.str(), Case::kLower).bytes() == v.str().bytes(); }},
      {"upper",
       [](const Value& v, const Arguments&) { return change_case(v.str(), Case::kUpper).bytes() == v.str().bytes(); }},
  };
  return table;
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(std::string(name)); }
bool is_test(std::string_view name) { return tests().contains(std::string(name)); }

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments) {
  const bool takes_undefined =
      name == "default" || name == "d" || name == "length" || name == "count" || name == "list" || name == "string" ||
      name == "trim" || name == "items" || name == "first" || name == "last" || name == "join" || name == "tojson" ||
      name == "int" || name == "float" || name == "map" || name.ends_with("attr") || name == "select" ||
      name == "reject" || name == "safe" || name == "upper" || name == "lower";
  if (input.is_undefined() && !takes_undefined) undefined_input(input);
  return filters().at(name)(input, arguments);
}

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  return tests().at(name)(input, arguments);
}

}  // namespace lora_train::tokenizer::jinja
