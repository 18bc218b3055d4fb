// Filters on lists, the filter table, and arguments.

#include <algorithm>
#include <charconv>

#include "builtins.h"
#include "strings.h"

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
  throw RenderError{"object of type '" + input.type_name() + "' has no len()"};
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
    if (!is_test(test)) throw RenderError{"test \"" + test + "\" is not supported", true};
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
    if (!is_filter(name)) throw RenderError{"filter \"" + name + "\" is not supported", true};
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

// What sort, unique, min and max compare: an attribute of the item, strings without case unless asked for.
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
  for (std::size_t i = 1; i < keyed.size(); ++i) less(keyed[0], keyed[i]);  // what has no order is refused before
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

}  // namespace

const FilterTable& list_filters() {
  static const FilterTable table = {
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
  };
  return table;
}

void check_arguments(const std::string& who, const Arguments& arguments,
                     const std::vector<std::string_view>& parameters) {
  if (!parameters.empty() && parameters.front() == "*") return;
  if (arguments.positional.size() > parameters.size()) {
    throw RenderError{who + " takes at most " + std::to_string(parameters.size()) +
                      " argument(s), or further ones are not supported"};
  }
  for (const auto& [name, unused] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (static_cast<std::size_t>(found - parameters.begin()) < arguments.positional.size() || found == parameters.end())
      throw RenderError{who + " takes no argument \"" + name + "\", or it is not supported"};
  }
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

std::int64_t integer_argument(const Arguments& arguments, std::size_t index, const char* name, std::int64_t fallback) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->is_whole()) throw RenderError{std::string(name) + " must be an integer, not " + value->type_name()};
  return value->whole();
}

bool is_filter(std::string_view name) {
  return list_filters().contains(std::string(name)) || scalar_filters().contains(std::string(name));
}

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments) {
  static const std::vector<std::string_view> refuse_undefined = {"abs", "indent", "dictsort", "round",
                                                                 "int", "float",  "tojson"};
  if (input.is_undefined() &&
      std::find(refuse_undefined.begin(), refuse_undefined.end(), name) != refuse_undefined.end()) {
    throw RenderError{"'" + std::get<Undefined>(input.data).name + "' is undefined"};
  }
  const auto in_lists = list_filters().find(name);
  const Builtin<Filter>& filter = in_lists != list_filters().end() ? in_lists->second : scalar_filters().at(name);
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
