// Methods of strings, lists, dictionaries and loops; the functions that every template can call; arguments.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "jinja.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::tokenizer::jinja {
namespace {

const Text& text_of(const Value& subject) { return *subject.as_text(); }

// startswith and endswith take one string or a tuple of them.
bool has_affix(const Value& subject, const Call& call, bool at_end) {
  const std::string& bytes = text_of(subject).bytes();
  const bool is_tuple = call[0].as_list() != nullptr && call[0].list_kind() == ListKind::kTuple;
  for (const Value& option : is_tuple ? *call[0].as_list() : List{call[0]}) {
    if (option.as_text() == nullptr)
      throw RenderError{call.who + " first arg must be str or a tuple of str, not " + option.type_name()};
    const std::string& affix = text_of(option).bytes();
    if (at_end ? bytes.ends_with(affix) : bytes.starts_with(affix)) return true;
  }
  return false;
}

Value without_affix(const Value& subject, const Call& call, bool at_end) {
  const Text& text = text_of(subject);
  const std::string affix = call.required_text(0);
  if (at_end) return text.bytes().ends_with(affix) ? text.slice(0, text.size() - affix.size()) : text;
  return text.bytes().starts_with(affix) ? text.slice(affix.size(), text.size()) : text;
}

Value split_method(const Value& subject, const Call& call, bool from_right) {
  const auto separator = call.text(0);
  if (separator && separator->empty()) throw RenderError{"empty separator"};
  return separator ? split_by(text_of(subject), *separator, call.integer(1), from_right)
                   : split_by_space(text_of(subject), call.integer(1), from_right);
}

std::size_t position_in(const Text& text, const std::string& needle, bool from_right) {
  spend_search(text.size(), needle.size());
  return from_right ? text.bytes().rfind(needle) : text.bytes().find(needle);
}

// find and rfind; `must` turns them into index and rindex.
Value find_in(const Value& subject, const Call& call, bool from_right, bool must) {
  const Text& text = text_of(subject);
  const std::size_t at = position_in(text, call.required_text(0), from_right);
  if (at != std::string::npos) return Value::integer(count_chars(std::string_view(text.bytes()).substr(0, at)));
  if (must) throw RenderError{"substring not found"};
  return std::int64_t{-1};
}

Value partition_method(const Value& subject, const Call& call, bool from_right) {
  const Text& text = text_of(subject);
  const std::string separator = call.required_text(0);
  if (separator.empty()) throw RenderError{"empty separator"};
  const std::size_t at = position_in(text, separator, from_right), end = at + separator.size();
  List parts = {text, Text(), Text()};
  if (at != std::string::npos)
    parts = {text.slice(0, at), text.slice(at, end), text.slice(end, text.size())};
  else if (from_right)
    std::swap(parts.front(), parts.back());
  return {std::move(parts), ListKind::kTuple};
}

Value join_method(const Value& separator, const Call& call) {
  const List items = iterate(call[0]);
  for (const Value& item : items) {
    if (item.as_text() == nullptr) throw RenderError{"join: expected str instance, " + item.type_name() + " found"};
  }
  return join_texts(items, text_of(separator));
}

bool all_chars(const Value& subject, bool (*fits)(std::uint32_t)) {
  const Text& text = text_of(subject);
  spend_bytes(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text.bytes(), at);
    if (!fits(c.code_point)) return false;
    at += std::max<std::size_t>(c.length, 1);
  }
  return !text.empty();
}

// ljust, rjust, center, zfill: padding up to a number of characters.
Value justified(const Value& subject, const Call& call, char side) {
  const Text& text = text_of(subject);
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(call.integer(0), 0));
  const std::string fill = side == '0' ? "0" : call.text(1).value_or(" ");
  if (count_chars(fill) != 1) throw RenderError{"The fill character must be exactly one character long"};
  const std::size_t missing = missing_chars(text, width);
  // str.center puts the extra character on the left if the width is odd.
  const std::size_t left = side == 'l' ? 0 : side == 'c' ? missing / 2 + (missing & width & 1) : missing;
  const bool has_sign = side == '0' && (text.bytes().starts_with('-') || text.bytes().starts_with('+'));
  return pad(text, has_sign ? 1 : 0, left, missing - left, fill);
}

// Methods of Python's str that we lack: reported by name, not treated as undefined.
Value unbuilt(const Value&, const Call& call) { throw RenderError{call.who + "() is not supported", true}; }

Value refuse_change(const Value&, const Call& call) {
  throw RenderError{call.who + " is refused: templates may not change their values (Hugging Face refuses it too)"};
}

Value dict_values(const Value& dict, const Call&) {
  List out;
  for (const auto& item : dict.as_dict()->items) out.push_back(item.second);
  return {std::move(out), ListKind::kValues};
}

Value get_method(const Value& dict, const Call& call) {
  const Text* key = call[0].as_text();
  const Value* found = key != nullptr ? dict.as_dict()->find(key->bytes()) : nullptr;
  return found != nullptr ? *found : call[1];
}

Value count_items(const Value& subject, const Call& call) {
  const List& list = *subject.as_list();
  return Value::integer(static_cast<std::size_t>(
      std::count_if(list.begin(), list.end(), [&](const Value& item) { return equal(item, call[0]); })));
}

Value index_method(const Value& subject, const Call& call) {
  const List& list = *subject.as_list();
  const auto found = std::find_if(list.begin(), list.end(), [&](const Value& item) { return equal(item, call[0]); });
  if (found == list.end()) throw RenderError{"the value is not in the list"};
  return Value::integer(static_cast<std::size_t>(found - list.begin()));
}

Value cycle_method(const Value& loop, const Call& call) {
  const List& values = call.given.positional;
  if (values.empty()) throw RenderError{"no items for cycling given"};
  return values[loop.as_loop()->index0 % values.size()];
}

Value changed_method(const Value& subject, const Call& call) {
  const List& values = call.given.positional;
  for (const Value& value : values) {
    if (value.holds_mutable() || value.as_callable() != nullptr)
      throw RenderError{"loop.changed of a namespace, loop or function is not supported", true};
  }
  Loop& loop = *subject.as_loop();
  const bool changed = !loop.changed || !equal(Value(*loop.changed), Value(values));
  if (changed) loop.changed = values;
  return changed;
}

Value make_range(const Value&, const Call& call) {
  const Arguments& arguments = call.given;
  std::int64_t parts[3] = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) throw RenderError{"range expected 1 to 3 arguments"};
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_whole()) throw RenderError{"range() takes integers"};
    parts[count == 1 ? 1 : i] = arguments.positional[i].whole();
  }
  const auto [start, stop, step] = parts;
  if (step == 0) throw RenderError{"range() arg 3 must not be zero"};
  List out;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (out.size() >= 100000) throw RenderError{"a range of more than 100,000 items", true, true};
    out.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return {std::move(out), ListKind::kRange};
}

Value make_dict(const Arguments& arguments, bool is_namespace) {
  Dict dict;
  dict.is_namespace = is_namespace;
  if (arguments.positional.size() > 1) throw RenderError{"namespace() and dict() take one dictionary at most"};
  for (const Value& source : arguments.positional) {
    if (source.as_mapping() == nullptr)
      throw RenderError{"namespace() or dict() of something other than a dictionary is not supported", true};
    for (const auto& [key, value] : source.as_mapping()->items) dict.set(key, value);
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  return dict;
}

Value format_now(const Value& time, const Call& call) {
  const std::string format = call.required_text(0);
  if (format.size() > 256) throw RenderError{"a time format of more than 256 bytes is not supported", true};
  const std::time_t now = time.as_int() == nullptr ? std::time(nullptr) : *time.as_int();
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(65536, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return Value::string(out);
}

Value raise_exception(const Value&, const Call& call) { throw RenderError{call[0].str().bytes()}; }

const Builtins& text_methods() {
  static const Builtins table = {
      {"startswith", "prefix", [](auto& v, auto& c) { return has_affix(v, c, false); }},
      {"endswith", "prefix", [](auto& v, auto& c) { return has_affix(v, c, true); }},
      {"strip", "chars=none", [](auto& v, auto& c) { return strip(text_of(v), c.text(0), true, true); }},
      {"lstrip", "chars=none", [](auto& v, auto& c) { return strip(text_of(v), c.text(0), true, false); }},
      {"rstrip", "chars=none", [](auto& v, auto& c) { return strip(text_of(v), c.text(0), false, true); }},
      {"removeprefix", "prefix", [](auto& v, auto& c) { return without_affix(v, c, false); }},
      {"removesuffix", "suffix", [](auto& v, auto& c) { return without_affix(v, c, true); }},
      {"ljust", "width=0, fillchar=' '", [](auto& v, auto& c) { return justified(v, c, 'l'); }},
      {"rjust", "width=0, fillchar=' '", [](auto& v, auto& c) { return justified(v, c, 'r'); }},
      {"center", "width=0, fillchar=' '", [](auto& v, auto& c) { return justified(v, c, 'c'); }},
      {"zfill", "width=0", [](auto& v, auto& c) { return justified(v, c, '0'); }},
      {"split", "sep=none, maxsplit=-1", [](auto& v, auto& c) { return split_method(v, c, false); }},
      {"rsplit", "sep=none, maxsplit=-1", [](auto& v, auto& c) { return split_method(v, c, true); }},
      {"splitlines", "keepends=false", [](auto& v, auto& c) { return split_lines(text_of(v), c.flag(0)); }},
      {"partition", "sep", [](auto& v, auto& c) { return partition_method(v, c, false); }},
      {"rpartition", "sep", [](auto& v, auto& c) { return partition_method(v, c, true); }},
      {"upper", "", [](auto& v, auto&) { return change_case(text_of(v), Case::kUpper); }},
      {"lower", "", [](auto& v, auto&) { return change_case(text_of(v), Case::kLower); }},
      {"title", "", [](auto& v, auto&) { return change_case(text_of(v), Case::kTitle); }},
      {"capitalize", "", [](auto& v, auto&) { return change_case(text_of(v), Case::kCapitalize); }},
      {"replace", "old, new, count=-1",
       [](auto& v, auto& c) {
         const std::string old = c.required_text(0);
         return replace(text_of(v), old, Text(c.required_text(1), kTemplate), c.integer(2));
       }},
      {"find", "sub", [](auto& v, auto& c) { return find_in(v, c, false, false); }},
      {"rfind", "sub", [](auto& v, auto& c) { return find_in(v, c, true, false); }},
      {"index", "sub", [](auto& v, auto& c) { return find_in(v, c, false, true); }},
      {"rindex", "sub", [](auto& v, auto& c) { return find_in(v, c, true, true); }},
      {"count", "sub",
       [](auto& v, auto& c) { return Value::integer(count_of(text_of(v).bytes(), c.required_text(0))); }},
      {"join", "iterable", join_method},
      {"isspace", "", [](auto& v, auto&) { return all_chars(v, is_space); }},
      {"isascii", "",
       [](auto& v, auto&) { return text_of(v).empty() || all_chars(v, [](std::uint32_t c) { return c < 0x80; }); }},
      {"casefold encode expandtabs format format_map isalnum isalpha isdecimal isdigit isidentifier islower isnumeric "
       "isprintable istitle isupper maketrans swapcase translate",
       "*", unbuilt},
  };
  return table;
}

const Builtins& dict_methods() {
  static const Builtins table = {
      {"items", "", [](auto& v, auto&) { return Value(pairs_of(v), ListKind::kItems); }},
      {"keys", "", [](auto& v, auto&) { return Value(iterate(v), ListKind::kKeys); }},
      {"values", "", dict_values},
      {"copy", "*", [](auto& v, auto&) { return Dict(*v.as_dict()); }},
      {"get", "key, default=none", get_method},
      {"pop popitem clear update setdefault", "*", refuse_change},
  };
  return table;
}

// Also those of tuples.
const Builtins& list_methods() {
  static const Builtins table = {
      {"index", "value", index_method},
      {"count", "value", count_items},
      {"copy", "*", [](auto& v, auto&) { return iterate(v); }},
      {"append extend insert pop remove clear reverse sort", "*", refuse_change},
  };
  return table;
}

const Builtins& loop_methods() {
  static const Builtins table = {{"cycle", "*", cycle_method}, {"changed", "*", changed_method}};
  return table;
}

const Builtins& global_functions() {
  static const Builtins table = {
      {"range", "*", make_range},
      {"namespace", "*", [](auto&, auto& c) { return make_dict(c.given, true); }},
      {"dict", "*", [](auto&, auto& c) { return make_dict(c.given, false); }},
      {"strftime_now", "format", format_now},
      {"raise_exception", "message='the template refuses this chat'", raise_exception},
      {"cycler joiner lipsum", "*", unbuilt},
  };
  return table;
}

// A type's name in messages, and its methods.
struct Methods {
  const char* type = nullptr;
  const Builtins* table = nullptr;
};

Methods methods_of(const Value& object) {
  if (object.as_text() != nullptr) return {"str", &text_methods()};
  if (object.as_dict() != nullptr) return {"dict", &dict_methods()};
  if (object.as_loop() != nullptr) return {"loop", &loop_methods()};
  return object.is_indexable() ? Methods{"list", &list_methods()} : Methods();
}

// Parameters as a macro declares them.
std::vector<Parameter> parameters_of(const std::string& written) {
  const ParsedTemplate parsed = parse(fmt::format("{{% macro f({}) %}}{{% endmacro %}}", written), "a builtin");
  const auto& [names, defaults, unused] = parsed.body[0].signature;
  std::vector<Parameter> parameters;
  for (const std::string& name : names) parameters.push_back({name, std::nullopt});
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    const Expr& literal = *defaults[i];
    parameters[names.size() - defaults.size() + i].fallback =
        literal.kind == ExprKind::kNegate ? signed_number(literal.children[0]->value, true) : literal.value;
  }
  return parameters;
}

}  // namespace

const Value& Call::operator[](std::size_t index) const {
  const Parameter& parameter = parameters[index];
  if (const Value* value = given.get(index, parameter.name)) return *value;
  if (!parameter.fallback) throw RenderError{"missing argument: " + parameter.name};
  return *parameter.fallback;
}

std::int64_t Call::integer(std::size_t index) const {
  const Parameter& parameter = parameters[index];
  const Value& value = (*this)[index].is_none() && parameter.fallback ? *parameter.fallback : (*this)[index];
  if (value.is_whole()) return value.whole();
  throw RenderError{fmt::format("{} must be an integer, not {}", parameter.name, value.type_name())};
}

std::optional<std::string> Call::text(std::size_t index) const {
  const Value& value = (*this)[index];
  if (value.is_none()) return std::nullopt;
  if (value.as_text() != nullptr) return value.as_text()->bytes();
  throw RenderError{fmt::format("{} must be str, not {}", parameters[index].name, value.type_name())};
}

std::string Call::required_text(std::size_t index) const {
  if (auto value = text(index)) return std::move(*value);
  throw RenderError{"missing argument: " + parameters[index].name};
}

Builtins::Builtins(std::initializer_list<Builtin> builtins) {
  const Budget own(Limits{});  // the rendering that needs a table first does not pay for it
  for (const Builtin& builtin : builtins) {
    const bool takes_anything = std::string_view(builtin.parameters) == "*";
    const Entry entry{takes_anything ? std::vector<Parameter>() : parameters_of(builtin.parameters), takes_anything,
                      builtin.function};
    const std::string_view names = builtin.names;
    for (std::size_t at = 0; at < names.size();) {
      const std::size_t end = std::min(names.find(' ', at), names.size());
      entries_.emplace(names.substr(at, end - at), entry);
      at = end + 1;
    }
  }
}

Value Builtins::call(const std::string& name, const std::string& who, const Value& subject,
                     const Arguments& arguments) const {
  const auto& [parameters, takes_anything, function] = entries_.at(name);
  if (!takes_anything && arguments.positional.size() > parameters.size())
    throw RenderError{fmt::format("{} supports at most {} argument(s)", who, parameters.size())};
  for (std::size_t i = 0; !takes_anything && i < arguments.named.size(); ++i) {
    const std::string& given = arguments.named[i].first;
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](auto& p) { return p.name == given; });
    if (found == parameters.end() || found - parameters.begin() < std::ssize(arguments.positional))
      throw RenderError{fmt::format("{} does not support the argument \"{}\"", who, given)};
  }
  return function(subject, {who, arguments, parameters});
}

std::optional<Value> find_method(const Value& object, const std::string& name) {
  const auto [type, table] = methods_of(object);
  if (table == nullptr || !table->contains(name)) return std::nullopt;
  const auto call = [object, table = table, name, who = fmt::format("{}.{}", type, name)](const Arguments& arguments) {
    return table->call(name, who, object, arguments);
  };
  return Value(Callable{name, call}, object);
}

std::optional<Value> find_global(const std::string& name, const Value& time) {
  if (!global_functions().contains(name)) return std::nullopt;
  return Callable{
      name, [name, time](const Arguments& arguments) { return global_functions().call(name, name, time, arguments); }};
}

}  // namespace lora_train::tokenizer::jinja
