// Methods of strings, lists and dictionaries, and the global functions.
#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "builtins.h"
#include "strings.h"

namespace lora_train::tokenizer::jinja {
namespace {

using TextMethod = Value (*)(const Text&, const Arguments&);

std::optional<std::string> string_argument(const Arguments& arguments, std::size_t index, const char* name) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr || value->is_none()) return std::nullopt;
  if (value->as_text() == nullptr) throw RenderError{std::string(name) + " must be str, not " + value->type_name()};
  return value->as_text()->bytes();
}

std::string required_string(const Arguments& arguments, std::size_t index, const char* name) {
  const auto value = string_argument(arguments, index, name);
  if (!value) throw RenderError{std::string("missing argument: ") + name};
  return *value;
}

std::int64_t integer_argument(const Arguments& arguments, std::size_t index, const char* name, std::int64_t fallback) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->is_whole()) throw RenderError{std::string(name) + " must be an integer, not " + value->type_name()};
  return value->whole();
}

// startswith and endswith take one string or a tuple of them.
template <class Fits>
Value matches_any(const Arguments& arguments, Fits fits) {
  const Value* given = arguments.get(0, "prefix");
  if (given == nullptr) throw RenderError{"missing argument of startswith or endswith"};
  const List options = given->as_list() != nullptr ? *given->as_list() : List{*given};
  for (const Value& option : options) {
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

Value find_in(const Text& text, const Arguments& arguments, bool from_right) {
  const std::string needle = required_string(arguments, 0, "sub");
  const std::size_t at = from_right ? text.bytes().rfind(needle) : text.bytes().find(needle);
  if (at == std::string::npos) return std::int64_t{-1};
  return Value::integer(char_positions(text.bytes().substr(0, at)).size() - 1);
}

Value join_method(const Text& separator, const Arguments& arguments) {
  const Value* items = arguments.get(0, "iterable");
  if (items == nullptr) throw RenderError{"join() takes exactly one argument"};
  return join_texts(iterate(*items), separator);
}

bool all_chars(const Text& text, bool (*fits)(unsigned char)) {
  return !text.empty() && std::all_of(text.bytes().begin(), text.bytes().end(),
                                      [&](char c) { return fits(static_cast<unsigned char>(c)); });
}

const std::unordered_map<std::string, TextMethod>& text_methods() {
  static const std::unordered_map<std::string, TextMethod> table = {
      {"startswith",
       [](const Text& t, const Arguments& a) {
         return matches_any(a, [&](const std::string& s) { return t.bytes().starts_with(s); });
       }},
      {"endswith",
       [](const Text& t, const Arguments& a) {
         return matches_any(a, [&](const std::string& s) { return t.bytes().ends_with(s); });
       }},
      {"strip",
       [](const Text& t, const Arguments& a) { return Value(strip(t, string_argument(a, 0, "chars"), true, true)); }},
      {"lstrip",
       [](const Text& t, const Arguments& a) { return Value(strip(t, string_argument(a, 0, "chars"), true, false)); }},
      {"rstrip",
       [](const Text& t, const Arguments& a) { return Value(strip(t, string_argument(a, 0, "chars"), false, true)); }},
      {"split", [](const Text& t, const Arguments& a) { return split_method(t, a, false); }},
      {"rsplit", [](const Text& t, const Arguments& a) { return split_method(t, a, true); }},
      {"splitlines", [](const Text& t, const Arguments&) { return Value(split_lines(t)); }},
      {"upper", [](const Text& t, const Arguments&) { return Value(change_case(t, Case::kUpper)); }},
      {"lower", [](const Text& t, const Arguments&) { return Value(change_case(t, Case::kLower)); }},
      {"title", [](const Text& t, const Arguments&) { return Value(change_case(t, Case::kTitle)); }},
      {"capitalize", [](const Text& t, const Arguments&) { return Value(change_case(t, Case::kCapitalize)); }},
      {"replace",
       [](const Text& t, const Arguments& a) {
         return Value(replace(t, required_string(a, 0, "old"), a.get(1, "new"), integer_argument(a, 2, "count", -1)));
       }},
      {"find", [](const Text& t, const Arguments& a) { return find_in(t, a, false); }},
      {"rfind", [](const Text& t, const Arguments& a) { return find_in(t, a, true); }},
      {"count", [](const Text& t,
                   const Arguments& a) { return Value::integer(count_of(t.bytes(), required_string(a, 0, "sub"))); }},
      {"join", join_method},
      {"removeprefix",
       [](const Text& t, const Arguments& a) {
         const std::string prefix = required_string(a, 0, "prefix");
         return Value(t.bytes().starts_with(prefix) ? t.slice(prefix.size(), t.size()) : t);
       }},
      {"removesuffix",
       [](const Text& t, const Arguments& a) {
         const std::string suffix = required_string(a, 0, "suffix");
         return Value(t.bytes().ends_with(suffix) ? t.slice(0, t.size() - suffix.size()) : t);
       }},
      {"isdigit",
       [](const Text& t, const Arguments&) {
         return Value(all_chars(t, [](unsigned char c) { return c >= '0' && c <= '9'; }));
       }},
  };
  return table;
}

Value pairs_of(const Dict& dict) {
  List out;
  for (const auto& [key, value] : dict.items) out.push_back(Value::tuple({Value::string(key), value}));
  return out;
}

std::optional<Value> dict_method(const std::shared_ptr<Dict>& dict, const std::string& name) {
  if (name == "items") return Callable{name, [dict](const Arguments&) { return pairs_of(*dict); }};
  if (name == "keys") return Callable{name, [dict](const Arguments&) { return Value(iterate(Value(*dict))); }};
  if (name == "values") {
    return Callable{name, [dict](const Arguments&) {
                      List out;
                      for (const auto& item : dict->items) out.push_back(item.second);
                      return Value(out);
                    }};
  }
  if (name != "get") return std::nullopt;
  return Callable{name, [dict](const Arguments& arguments) {
                    const Value* key = arguments.get(0, "key");
                    const Value* found =
                        key != nullptr && key->as_text() != nullptr ? dict->find(key->as_text()->bytes()) : nullptr;
                    const Value* fallback = arguments.get(1, "default");
                    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
                  }};
}

std::optional<Value> list_method(const std::shared_ptr<List>& list, const std::string& name) {
  if (name == "append" || name == "extend" || name == "insert" || name == "pop" || name == "remove" ||
      name == "clear") {
    return Callable{
        name, [name](const Arguments&) -> Value {
          throw RenderError{"list." + name +
                            " is refused: templates may not change their lists (Hugging Face refuses it too)"};
        }};
  }
  if (name != "index" && name != "count") return std::nullopt;
  return Callable{name, [list, name](const Arguments& arguments) {
                    const Value* item = arguments.get(0, "value");
                    if (item == nullptr) throw RenderError{"list." + name + "() takes one argument"};
                    const auto is_item = [&](const Value& other) { return equal(other, *item); };
                    if (name == "count")
                      return Value(static_cast<std::int64_t>(std::count_if(list->begin(), list->end(), is_item)));
                    const auto found = std::find_if(list->begin(), list->end(), is_item);
                    if (found == list->end()) throw RenderError{item->repr() + " is not in list"};
                    return Value(static_cast<std::int64_t>(found - list->begin()));
                  }};
}

Value make_range(const Arguments& arguments) {
  std::int64_t parts[3] = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > 3) throw RenderError{"range expected 1 to 3 arguments"};
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_whole()) throw RenderError{"range() takes integers"};
    parts[count == 1 ? 1 : i] = arguments.positional[i].whole();
  }
  if (parts[2] == 0) throw RenderError{"range() arg 3 must not be zero"};
  List out;
  for (std::int64_t i = parts[0]; parts[2] > 0 ? i < parts[1] : i > parts[1];) {
    if (out.size() >= 100000) throw RenderError{"a range of more than 100,000 items", true};
    out.push_back(i);
    if (__builtin_add_overflow(i, parts[2], &i)) break;
  }
  return out;
}

Value make_dict(const Arguments& arguments, bool is_namespace) {
  Dict dict;
  for (const Value& source : arguments.positional) {
    if (source.as_dict() == nullptr) throw RenderError{"namespace() and dict() take a dictionary or named arguments"};
    for (const auto& [key, value] : source.as_dict()->items) dict.set(key, value);
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  for (const auto& item : dict.items) {
    if (item.second.holds_namespace()) throw RenderError{"a namespace inside another is not built", true};
  }
  dict.is_namespace = is_namespace;
  return dict;
}

Value format_now(const Arguments& arguments) {
  const std::string format = required_string(arguments, 0, "format");
  if (format.empty()) return Text();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(1024, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return Value::string(out);
}

}  // namespace

std::optional<Value> find_method(const Value& object, const std::string& name) {
  if (const auto* text = std::get_if<std::shared_ptr<const Text>>(&object.data)) {
    const auto found = text_methods().find(name);
    if (found == text_methods().end()) return std::nullopt;
    return Callable{name, [text = *text, method = found->second](const Arguments& a) { return method(*text, a); }};
  }
  if (const auto* dict = std::get_if<std::shared_ptr<Dict>>(&object.data)) return dict_method(*dict, name);
  if (const auto* list = std::get_if<std::shared_ptr<List>>(&object.data)) return list_method(*list, name);
  return std::nullopt;
}

std::optional<Value> find_global(const std::string& name) {
  if (name == "range") return Callable{name, make_range};
  if (name == "namespace") return Callable{name, [](const Arguments& a) { return make_dict(a, true); }};
  if (name == "dict") return Callable{name, [](const Arguments& a) { return make_dict(a, false); }};
  if (name == "strftime_now") return Callable{name, format_now};
  if (name != "raise_exception") return std::nullopt;
  return Callable{name, [](const Arguments& arguments) -> Value {
                    const Value* message = arguments.get(0, "message");
                    throw RenderError{message == nullptr ? "the template refuses this chat" : message->str().bytes()};
                  }};
}

}  // namespace lora_train::tokenizer::jinja
