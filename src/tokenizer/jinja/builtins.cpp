// Methods of strings, lists, dictionaries and loops; the functions that every template can call; arguments.
#include "builtins.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "lora_train/tokenizer/chat/chat_template.h"
#include "strings.h"

namespace lora_train::tokenizer::jinja {
namespace {

using TextMethod = Value (*)(const Text&, const Arguments&);

std::optional<std::string> string_argument(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr || value->is_none()) return std::nullopt;
  if (value->as_text() == nullptr) throw RenderError{fmt::format("{} must be str, not {}", name, value->type_name())};
  return value->as_text()->bytes();
}

std::string required_string(const Arguments& arguments, std::size_t index, const char* name) {
  const auto value = string_argument(arguments, index, name);
  if (!value) throw RenderError{std::string("missing argument: ") + name};
  return *value;
}

// startswith and endswith take one string or a tuple of them.
template <class Fits>
Value matches_any(const Arguments& arguments, Fits fits) {
  const Value& given = required(arguments, 0, "prefix");
  const bool is_tuple = given.as_list() != nullptr && given.list_kind() == ListKind::kTuple;
  for (const Value& option : is_tuple ? *given.as_list() : List{given}) {
    if (option.as_text() == nullptr)
      throw RenderError{"startswith first arg must be str or a tuple of str, not " + option.type_name()};
    if (fits(option.as_text()->bytes())) return true;
  }
  return false;
}

Value split_method(const Text& text, const Arguments& arguments, bool from_right) {
  const auto separator = string_argument(arguments, 0, "sep");
  const std::int64_t limit = integer_argument(arguments, 1, "maxsplit", -1);
  if (separator && separator->empty()) throw RenderError{"empty separator"};
  return separator ? split_by(text, *separator, limit, from_right) : split_by_space(text, limit, from_right);
}

// find and rfind; `must` turns them into index and rindex.
Value find_in(const Text& text, const Arguments& arguments, bool from_right, bool must) {
  const std::string needle = required_string(arguments, 0, "sub");
  spend_search(text.size(), needle.size());
  const std::size_t at = from_right ? text.bytes().rfind(needle) : text.bytes().find(needle);
  if (at != std::string::npos) return Value::integer(count_chars(std::string_view(text.bytes()).substr(0, at)));
  if (must) throw RenderError{"substring not found"};
  return std::int64_t{-1};
}

Value partition_method(const Text& text, const Arguments& arguments, bool from_right) {
  const std::string separator = required_string(arguments, 0, "sep");
  if (separator.empty()) throw RenderError{"empty separator"};
  spend_search(text.size(), separator.size());
  const std::size_t at = from_right ? text.bytes().rfind(separator) : text.bytes().find(separator);
  List parts = {text, Text(), Text()};
  if (at == std::string::npos && from_right) parts = {Text(), Text(), text};
  if (at != std::string::npos) {
    const std::size_t end = at + separator.size();
    parts = {text.slice(0, at), text.slice(at, end), text.slice(end, text.size())};
  }
  return {std::move(parts), ListKind::kTuple};
}

Value join_method(const Text& separator, const Arguments& arguments) {
  const Value& given = required(arguments, 0, "iterable");
  if (given.is_undefined()) return Text();
  const List items = iterate(given);
  for (const Value& item : items) {
    if (item.as_text() == nullptr) throw RenderError{"join: expected str instance, " + item.type_name() + " found"};
  }
  return join_texts(items, separator);
}

bool all_chars(const Text& text, bool (*fits)(std::uint32_t)) {
  spend_bytes(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text.bytes(), at);
    if (!fits(c.code_point)) return false;
    at += std::max<std::size_t>(c.length, 1);
  }
  return !text.empty();
}

// ljust, rjust, center, zfill: padding up to a number of characters.
Value padded(const Text& text, const Arguments& arguments, char side) {
  const std::int64_t width = integer_argument(arguments, 0, "width", 0);
  const std::string fill = side == '0' ? "0" : string_argument(arguments, 1, "fillchar").value_or(" ");
  if (count_chars(fill) != 1) throw RenderError{"The fill character must be exactly one character long"};
  const auto length = static_cast<std::int64_t>(count_chars(text.bytes()));
  if (width <= length) return text;
  check_text_size(static_cast<std::size_t>(width));
  const std::int64_t missing = width - length;
  // str.center puts the extra character on the left if the width is odd.
  std::int64_t left = side == 'l' ? 0 : side == 'c' ? missing / 2 + (missing & width & 1) : missing;
  Text out;
  const bool has_sign = side == '0' && !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  if (has_sign) out.append(text, 0, 1);
  for (std::int64_t i = 0; i < left; ++i) out.append(fill, kTemplate);
  out.append(text, has_sign ? 1 : 0, text.size());
  for (std::int64_t i = left; i < missing; ++i) out.append(fill, kTemplate);
  return out;
}

const std::unordered_map<std::string, Builtin<TextMethod>>& affix_methods() {
  static const std::unordered_map<std::string, Builtin<TextMethod>> table = {
      {"startswith",
       {[](const Text& t, const Arguments& a) {
          return matches_any(a, [&](const std::string& s) { return t.bytes().starts_with(s); });
        },
        {"prefix"}}},
      {"endswith",
       {[](const Text& t, const Arguments& a) {
          return matches_any(a, [&](const std::string& s) { return t.bytes().ends_with(s); });
        },
        {"prefix"}}},
      {"strip",
       {[](const Text& t, const Arguments& a) { return Value(strip(t, string_argument(a, 0, "chars"), true, true)); },
        {"chars"}}},
      {"lstrip",
       {[](const Text& t, const Arguments& a) { return Value(strip(t, string_argument(a, 0, "chars"), true, false)); },
        {"chars"}}},
      {"rstrip",
       {[](const Text& t, const Arguments& a) { return Value(strip(t, string_argument(a, 0, "chars"), false, true)); },
        {"chars"}}},
      {"removeprefix",
       {[](const Text& t, const Arguments& a) {
          const std::string prefix = required_string(a, 0, "prefix");
          return Value(t.bytes().starts_with(prefix) ? t.slice(prefix.size(), t.size()) : t);
        },
        {"prefix"}}},
      {"removesuffix",
       {[](const Text& t, const Arguments& a) {
          const std::string suffix = required_string(a, 0, "suffix");
          return Value(t.bytes().ends_with(suffix) ? t.slice(0, t.size() - suffix.size()) : t);
        },
        {"suffix"}}},
      {"ljust", {[](const Text& t, const Arguments& a) { return padded(t, a, 'l'); }, {"width", "fillchar"}}},
      {"rjust", {[](const Text& t, const Arguments& a) { return padded(t, a, 'r'); }, {"width", "fillchar"}}},
      {"center", {[](const Text& t, const Arguments& a) { return padded(t, a, 'c'); }, {"width", "fillchar"}}},
      {"zfill", {[](const Text& t, const Arguments& a) { return padded(t, a, '0'); }, {"width"}}},
  };
  return table;
}

const std::unordered_map<std::string, Builtin<TextMethod>>& text_methods() {
  static const std::unordered_map<std::string, Builtin<TextMethod>> table = {
      {"split", {[](const Text& t, const Arguments& a) { return split_method(t, a, false); }, {"sep", "maxsplit"}}},
      {"rsplit", {[](const Text& t, const Arguments& a) { return split_method(t, a, true); }, {"sep", "maxsplit"}}},
      {"splitlines",
       {[](const Text& t, const Arguments& a) { return Value(split_lines(t, flag(a, 0, "keepends"))); }, {"keepends"}}},
      {"partition", {[](const Text& t, const Arguments& a) { return partition_method(t, a, false); }, {"sep"}}},
      {"rpartition", {[](const Text& t, const Arguments& a) { return partition_method(t, a, true); }, {"sep"}}},
      {"upper", {[](const Text& t, const Arguments&) { return Value(change_case(t, Case::kUpper)); }}},
      {"lower", {[](const Text& t, const Arguments&) { return Value(change_case(t, Case::kLower)); }}},
      {"title", {[](const Text& t, const Arguments&) { return Value(change_case(t, Case::kTitle)); }}},
      {"capitalize", {[](const Text& t, const Arguments&) { return Value(change_case(t, Case::kCapitalize)); }}},
      {"replace",
       {[](const Text& t, const Arguments& a) {
          const std::string old = required_string(a, 0, "old");
          return Value(
              replace(t, old, Text(required_string(a, 1, "new"), kTemplate), integer_argument(a, 2, "count", -1)));
        },
        {"old", "new", "count"}}},
      {"find", {[](const Text& t, const Arguments& a) { return find_in(t, a, false, false); }, {"sub"}}},
      {"rfind", {[](const Text& t, const Arguments& a) { return find_in(t, a, true, false); }, {"sub"}}},
      {"index", {[](const Text& t, const Arguments& a) { return find_in(t, a, false, true); }, {"sub"}}},
      {"rindex", {[](const Text& t, const Arguments& a) { return find_in(t, a, true, true); }, {"sub"}}},
      {"count",
       {[](const Text& t, const Arguments& a) {
          return Value::integer(count_of(t.bytes(), required_string(a, 0, "sub")));
        },
        {"sub"}}},
      {"join", {join_method, {"iterable"}}},
      {"format", {brace_format, {"*"}}},
      {"isspace", {[](const Text& t, const Arguments&) { return Value(all_chars(t, is_space)); }}},
      {"isascii", {[](const Text& t, const Arguments&) {
         return Value(t.empty() || all_chars(t, [](std::uint32_t c) { return c < 0x80; }));
       }}},
  };
  return table;
}

// Methods of Python's str that we lack: reported by name, not treated as undefined.
bool is_unbuilt_text_method(const std::string& name) {
  static const char* const names[] = {"casefold",  "encode",  "expandtabs",   "format_map", "isalnum",   "isalpha",
                                      "isdecimal", "isdigit", "isidentifier", "islower",    "isnumeric", "isprintable",
                                      "istitle",   "isupper", "maketrans",    "swapcase",   "translate"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value pairs_of(const Dict& dict) {
  List out;
  for (const auto& [key, value] : dict.items) out.push_back(Value({Value::string(key), value}, ListKind::kTuple));
  return {std::move(out), ListKind::kItems};
}

[[noreturn]] void refuse_change(const std::string& what) {
  throw RenderError{what + " is refused: templates may not change their values (Hugging Face refuses it too)"};
}

bool is_among(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::optional<Callable> dict_method(const std::shared_ptr<Dict>& dict, const std::string& name) {
  if (name == "items")
    return Callable{name, [dict](const Arguments& a) {
                      check_arguments("items", a, {});
                      return pairs_of(*dict);
                    }};
  if (name == "keys" || name == "values") {
    return Callable{name, [dict, name](const Arguments& arguments) {
                      check_arguments(name, arguments, {});
                      List out;
                      for (const auto& [key, value] : dict->items)
                        out.push_back(name == "keys" ? Value::string(key) : value);
                      return Value(std::move(out), name == "keys" ? ListKind::kKeys : ListKind::kValues);
                    }};
  }
  if (name == "copy") return Callable{name, [dict](const Arguments&) { return Value(Dict(*dict)); }};
  if (is_among(name, {"pop", "popitem", "clear", "update", "setdefault"}))
    return Callable{name, [name](const Arguments&) -> Value { refuse_change("dict." + name); }};
  if (name != "get") return std::nullopt;
  return Callable{name, [dict](const Arguments& arguments) {
                    check_arguments("get", arguments, {"key", "default"});
                    const Value& key = required(arguments, 0, "key");
                    const Value* found = key.as_text() != nullptr ? dict->find(key.as_text()->bytes()) : nullptr;
                    const Value* fallback = arguments.get(1, "default");
                    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
                  }};
}

std::optional<Callable> list_method(const Value& object, const std::string& name) {
  const bool is_list = object.list_kind() == ListKind::kList;
  if (is_list && is_among(name, {"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort"}))
    return Callable{name, [name](const Arguments&) -> Value { refuse_change("list." + name); }};
  if (is_list && name == "copy") return Callable{name, [object](const Arguments&) { return Value(iterate(object)); }};
  if (!object.is_indexable() || (name != "index" && name != "count")) return std::nullopt;
  return Callable{name, [object, name](const Arguments& arguments) {
                    check_arguments("list." + name, arguments, {"value"});
                    const Value& item = required(arguments, 0, "value");
                    const List& list = *object.as_list();
                    const auto is_item = [&](const Value& other) { return equal(other, item); };
                    if (name == "count")
                      return Value(static_cast<std::int64_t>(std::count_if(list.begin(), list.end(), is_item)));
                    const auto found = std::find_if(list.begin(), list.end(), is_item);
                    if (found == list.end()) throw RenderError{"the value is not in the list"};
                    return Value(static_cast<std::int64_t>(found - list.begin()));
                  }};
}

std::optional<Callable> loop_method(const std::shared_ptr<Loop>& loop, const std::string& name) {
  if (name == "cycle")
    return Callable{name, [loop](const Arguments& arguments) {
                      const List& values = arguments.positional;
                      if (values.empty()) throw RenderError{"no items for cycling given"};
                      return values[loop->index0 % values.size()];
                    }};
  if (name != "changed") return std::nullopt;
  return Callable{name, [loop](const Arguments& arguments) {
                    const List& values = arguments.positional;
                    for (const Value& value : values) {
                      if (value.holds_mutable() || value.as_callable() != nullptr)
                        throw RenderError{"loop.changed of a namespace, loop or function is not supported", true};
                    }
                    const bool changed = !loop->changed || !equal(Value(*loop->changed), Value(values));
                    if (changed) loop->changed = values;
                    return Value(changed);
                  }};
}

Value make_range(const Arguments& arguments) {
  std::int64_t parts[3] = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) throw RenderError{"range expected 1 to 3 arguments"};
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_whole()) throw RenderError{"range() takes integers"};
    parts[count == 1 ? 1 : i] = arguments.positional[i].whole();
  }
  if (parts[2] == 0) throw RenderError{"range() arg 3 must not be zero"};
  List out;
  for (std::int64_t i = parts[0]; parts[2] > 0 ? i < parts[1] : i > parts[1];) {
    if (out.size() >= 100000) throw RenderError{"a range of more than 100,000 items", true, true};
    out.push_back(i);
    if (__builtin_add_overflow(i, parts[2], &i)) break;
  }
  return {std::move(out), ListKind::kRange};
}

Value make_dict(const Arguments& arguments, bool is_namespace) {
  Dict dict;
  for (const Value& source : arguments.positional) {
    if (arguments.positional.size() > 1) throw RenderError{"namespace() and dict() take one dictionary at most"};
    if (source.as_dict() == nullptr || source.as_namespace() != nullptr)
      throw RenderError{"namespace() or dict() of something other than a dictionary is not supported", true};
    for (const auto& [key, value] : source.as_dict()->items) dict.set(key, value);
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  for (const auto& item : dict.items) {
    if (is_namespace && item.second.holds_mutable())
      throw RenderError{"a namespace or loop inside a namespace is not supported", true};
  }
  dict.is_namespace = is_namespace;
  return dict;
}

Value format_now(const Arguments& arguments) {
  check_arguments("strftime_now", arguments, {"format"});
  const Value& format = required(arguments, 0, "format");
  if (format.as_text() == nullptr) throw RenderError{"strftime_now takes a string"};
  if (format.as_text()->empty()) return Text();
  if (format.as_text()->size() > 256) throw RenderError{"a time format of more than 256 bytes is not supported", true};
  const auto now = static_cast<std::time_t>(template_time());
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(65536, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.as_text()->bytes().c_str(), &local));
  return Value::string(out);
}

Value raise_exception(const Arguments& arguments) {
  const Value* message = arguments.get(0, "message");
  throw RenderError{message == nullptr ? "the template refuses this chat" : message->str().bytes()};
}

}  // namespace

std::optional<Value> find_method(const Value& object, const std::string& name) {
  if (const auto* text = std::get_if<std::shared_ptr<const Text>>(&object.data)) {
    if (is_unbuilt_text_method(name)) {
      return Callable{name, [name](const Arguments&) -> Value {
                        throw RenderError{fmt::format("str.{}() is not supported", name), true};
                      }};
    }
    const bool is_affix = affix_methods().contains(name);
    if (!is_affix && !text_methods().contains(name)) return std::nullopt;
    const Builtin<TextMethod>& method = is_affix ? affix_methods().at(name) : text_methods().at(name);
    return Callable{name, [text = *text, name, &method](const Arguments& arguments) {
                      check_arguments("str." + name, arguments, method.parameters);
                      return method.function(*text, arguments);
                    }};
  }
  std::optional<Callable> method;
  if (const auto* dict = std::get_if<std::shared_ptr<Dict>>(&object.data)) method = dict_method(*dict, name);
  if (object.as_list() != nullptr) method = list_method(object, name);
  if (const auto* loop = std::get_if<std::shared_ptr<Loop>>(&object.data)) method = loop_method(*loop, name);
  if (!method) return std::nullopt;
  return Value(std::move(*method), object);
}

std::optional<Value> find_global(const std::string& name) {
  if (name == "range") return Callable{name, make_range};
  if (name == "namespace") return Callable{name, [](const Arguments& a) { return make_dict(a, true); }};
  if (name == "dict") return Callable{name, [](const Arguments& a) { return make_dict(a, false); }};
  if (name == "strftime_now") return Callable{name, format_now};
  if (name == "raise_exception") return Callable{name, raise_exception};
  if (name != "cycler" && name != "joiner" && name != "lipsum") return std::nullopt;
  return Callable{name, [name](const Arguments&) -> Value { throw RenderError{name + "() is not supported", true}; }};
}

void check_arguments(const std::string& who, const Arguments& arguments,
                     const std::vector<std::string_view>& parameters) {
  if (!parameters.empty() && parameters.front() == "*") return;
  if (arguments.positional.size() > parameters.size()) {
    throw RenderError{fmt::format("{} supports at most {} argument(s)", who, parameters.size())};
  }
  for (const auto& [name, unused] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (static_cast<std::size_t>(found - parameters.begin()) < arguments.positional.size() || found == parameters.end())
      throw RenderError{fmt::format("{} does not support the argument \"{}\"", who, name)};
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
  if (!value->is_whole()) throw RenderError{fmt::format("{} must be an integer, not {}", name, value->type_name())};
  return value->whole();
}

}  // namespace lora_train::tokenizer::jinja
