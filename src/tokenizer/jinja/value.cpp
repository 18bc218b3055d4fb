#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "jinja.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

thread_local Budget* current = nullptr;

}  // namespace

Budget::Budget(const Limits& limits) : left_(limits), given_(limits), outer_(std::exchange(current, this)) {}
Budget::~Budget() { current = outer_; }

void spend_step() {
  if (current == nullptr) return;
  if (current->left_.steps == 0) {
    throw RenderError{fmt::format("the template takes more than {} steps", current->given_.steps), true, true};
  }
  --current->left_.steps;
  current->stop_poll_();
}

void spend_bytes(std::size_t bytes) {
  if (current == nullptr) return;
  if (bytes > current->left_.bytes) {
    throw RenderError{
        fmt::format("the template creates and copies more than {} MiB of text and lists", current->given_.bytes >> 20U),
        true, true};
  }
  current->left_.bytes -= bytes;
  current->stop_poll_();
}

void check_text_size(std::size_t bytes) {
  if (bytes > kMaxTextBytes) throw RenderError{"a text grew beyond 16 MiB", true, true};
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  spend_bytes(bytes.size() + sizeof(Run));
  check_text_size(bytes_.size() + bytes.size());
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  for (auto run = other.run_at(begin); run != other.runs_.end() && begin < end; ++run) {
    const std::size_t stop = std::min(run->end, end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
  }
}

std::vector<Text::Run>::const_iterator Text::run_at(std::size_t at) const {
  return std::ranges::upper_bound(runs_, at, {}, &Run::end);
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

namespace {

// Python's str.isprintable(), for one character. The last categories are separators, then controls and the like.
bool is_printable(std::uint32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

std::string string_repr(const std::string& text) {
  spend_bytes(text.size());
  const bool double_quoted = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    const std::size_t length = std::max<std::size_t>(c.length, 1);
    const char byte = text[at];
    if (byte == '\n' || byte == '\r' || byte == '\t') {
      (out += '\\') += byte == '\n' ? 'n' : byte == '\r' ? 'r' : 't';
    } else if (byte == '\\' || byte == quote) {
      (out += '\\') += byte;
    } else if (is_printable(c.code_point)) {
      out.append(text, at, length);
    } else {
      out += c.code_point < 0x100     ? fmt::format("\\x{:02x}", c.code_point)
             : c.code_point < 0x10000 ? fmt::format("\\u{:04x}", c.code_point)
                                      : fmt::format("\\U{:08x}", c.code_point);
    }
    at += length;
  }
  return out + quote;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  spend_bytes(8 * items.size());
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  spend_bytes(8 * items.size() + sizeof(items[0]));
  if (is_namespace && value.holds_mutable())
    throw RenderError{"a namespace or loop inside a namespace is not supported", true};
  for (auto& [name, old] : items) {
    if (name != key) continue;
    old = std::move(value);
    return;
  }
  items.emplace_back(key, std::move(value));
}

const Value* Arguments::get(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Value::hold(const Value& item) {
  depth_ = std::max(depth_, item.depth_ + 1);
  holds_mutable_ = holds_mutable_ || item.holds_mutable_;
  if (depth_ > kMaxDepth) throw RenderError{"lists and dictionaries are nested deeper than 100 levels", true, true};
}

Value::Value(Text text) {
  spend_bytes(sizeof text + 2 * sizeof(Value));  // including allocator overhead
  data = std::make_shared<const Text>(std::move(text));
}

Value::Value(List list) : depth_(1) {
  spend_bytes(sizeof(Value) * (list.size() + 1));
  for (const Value& item : list) hold(item);
  data = std::make_shared<List>(std::move(list));
}

Value::Value(Dict dict) : depth_(1), holds_mutable_(dict.is_namespace) {
  spend_bytes(sizeof(dict.items[0]) * (dict.items.size() + 1));
  for (const auto& item : dict.items) hold(item.second);
  data = std::make_shared<Dict>(std::move(dict));
}

Value Value::group(Value grouper, List items) {
  Value pair({std::move(grouper), Value(std::move(items))}, ListKind::kTuple);
  pair.is_group_ = true;
  return pair;
}

Value::Value(std::shared_ptr<Loop> loop) : holds_mutable_(true) {
  for (const Value& item : loop->items) hold(item);
  data = std::move(loop);
}

Value::Value(Callable method, const Value& object) : Value(std::move(method)) { hold(object); }

Dict* Value::as_namespace() const {
  const auto* dict = std::get_if<std::shared_ptr<Dict>>(&data);
  return dict != nullptr && (*dict)->is_namespace ? dict->get() : nullptr;
}

void Value::check_defined() const {
  if (const auto* undefined = std::get_if<Undefined>(&data))
    throw RenderError{fmt::format("'{}' is undefined", undefined->name)};
}

double Value::number() const { return as_double() != nullptr ? *as_double() : static_cast<double>(whole()); }

std::int64_t Value::whole() const {
  if (const auto* flag = as_bool()) return *flag ? 1 : 0;
  return *as_int();
}

bool Value::truth() const {
  if (const auto* text = as_text()) return !text->empty();
  if (const auto* list = as_list()) return !list->empty() || is_generator();
  if (const auto* dict = as_dict()) return dict->is_namespace || !dict->items.empty();
  if (is_number()) return number() != 0.0;
  return as_callable() != nullptr || as_loop() != nullptr;
}

std::string Value::type_name() const {
  static const char* const names[] = {"Undefined", "NoneType", "bool", "int",      "float",
                                      "str",       "list",     "dict", "function", "loop"};
  static const char* const list_names[] = {"list",      "tuple",       "range",     "generator",
                                           "dict_keys", "dict_values", "dict_items"};
  if (as_list() != nullptr) return list_names[static_cast<std::size_t>(list_kind_)];
  return as_namespace() != nullptr ? "Namespace" : names[data.index()];
}

Text Value::str() const {
  if (const auto* text = as_text()) return *text;
  if (is_undefined()) return {};
  return {repr(), is_number() || is_none() ? kTemplate : kComputed};
}

namespace {

std::string list_repr(const List& list, ListKind kind) {
  std::string out;
  for (const Value& item : list) {
    out += (out.empty() ? "" : ", ") + item.repr();
    check_text_size(out.size());
  }
  switch (kind) {
    case ListKind::kTuple: return fmt::format("({}{}", out, list.size() == 1 ? ",)" : ")");
    case ListKind::kKeys: return fmt::format("dict_keys([{}])", out);
    case ListKind::kValues: return fmt::format("dict_values([{}])", out);
    case ListKind::kItems: return fmt::format("dict_items([{}])", out);
    default: return fmt::format("[{}]", out);
  }
}

std::string dict_repr(const Dict& dict) {
  std::string out;
  for (const auto& [key, value] : dict.items) {
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", string_repr(key), value.repr());
    check_text_size(out.size());
  }
  return dict.is_namespace ? fmt::format("<Namespace {{{}}}>", out) : fmt::format("{{{}}}", out);
}

}  // namespace

std::string Value::repr() const {
  spend_bytes(64);
  if (const auto* text = as_text()) return string_repr(text->bytes());
  if (is_none()) return "None";
  if (is_undefined()) return "Undefined";
  if (const auto* flag = as_bool()) return *flag ? "True" : "False";
  if (const auto* whole_number = as_int()) return std::to_string(*whole_number);
  if (const auto* real = as_double()) return float_repr(*real);
  if (const auto* dict = as_dict()) return dict_repr(*dict);
  const auto* list = as_list();
  if (list == nullptr || list_kind_ == ListKind::kRange || list_kind_ == ListKind::kGenerator) {
    throw RenderError{fmt::format("writing a {} is not supported", type_name()), true};
  }
  return list_repr(*list, list_kind_);
}

namespace {

bool equal_lists(const Value& a, const Value& b) {
  const List &x = *a.as_list(), &y = *b.as_list();
  if (a.list_kind() != b.list_kind()) return false;
  if (&x == &y) return true;
  return !a.is_generator() && a.list_kind() != ListKind::kValues && std::ranges::equal(x, y, equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.is_namespace || b.is_namespace || a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Value* twin = b.find(key);
    if (twin == nullptr || !equal(value, *twin)) return false;
  }
  return true;
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  spend_bytes(32);
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  }
  if (a.data.index() != b.data.index()) return false;
  if (const auto* text = a.as_text()) {
    if (text->size() == b.as_text()->size()) spend_bytes(text->size());
    return text->bytes() == b.as_text()->bytes();
  }
  if (a.as_list() != nullptr) return equal_lists(a, b);
  if (a.as_dict() != nullptr) return equal_dicts(*a.as_dict(), *b.as_dict());
  return a.is_none() || a.is_undefined() || (a.as_loop() != nullptr && a.as_loop() == b.as_loop());
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double magnitude = std::fabs(value);
  const bool scientific = magnitude != 0.0 && (magnitude < 1e-4 || magnitude >= 1e16);
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value,
                                    scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer, result.ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

// One character as written between the quotes.
std::string json_char(std::uint32_t code, std::string_view bytes, bool ensure_ascii) {
  static const std::string_view special = "\"\\\n\r\t\b\f", letters = "\"\\nrtbf";
  const std::size_t at = code < 0x80 ? special.find(static_cast<char>(code)) : std::string_view::npos;
  if (at != std::string_view::npos) return {'\\', letters[at]};
  if (code >= 0x20 && (!ensure_ascii || code < 0x7F)) return std::string(bytes);
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + ((code - 0x10000U) >> 10U),
                     0xDC00U + ((code - 0x10000U) & 0x3FFU));
}

// Writes into a Text, so that strings from the chat keep their origin.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, std::size_t depth) {
    spend_bytes(64);
    if (const auto* list = value.as_list(); list != nullptr && value.list_kind() <= ListKind::kTuple)
      return write_items("[]", list->size(), depth, [&](std::size_t i) { write((*list)[i], depth + 1); });
    if (const auto* dict = value.as_mapping()) return write_dict(*dict, depth);
    if (const auto* text = value.as_text()) return write_string(*text);
    if (const auto* flag = value.as_bool())
      add(*flag ? "true" : "false");
    else if (value.is_none())
      add("null");
    else if (value.as_double() != nullptr)
      write_double(*value.as_double());
    else if (value.is_number())
      add(value.repr());
    else
      throw RenderError{fmt::format("Object of type {} is not JSON serializable", value.type_name())};
  }

  Text out;

 private:
  void add(std::string_view bytes) { out.append(bytes, kTemplate); }
  void write_string(const Text& text) {
    add("\"");
    std::size_t at = 0;
    for (const Text::Run& run : text.runs()) {
      std::string part;
      while (at < run.end) {
        const Utf8Char c = utf8_char(text.bytes(), at);
        const std::size_t length = std::max<std::size_t>(c.length, 1);
        part += json_char(c.code_point, std::string_view(text.bytes()).substr(at, length), style_.ensure_ascii);
        at += length;
      }
      out.append(part, run.origin);
    }
    add("\"");
  }
  void write_double(double number) {
    if (std::isnan(number)) return add("NaN");
    add(std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity") : float_repr(number));
  }
  void line(std::size_t depth) {
    if (!style_.indent) return;
    add("\n");
    for (std::size_t i = 0; i < depth; ++i) add(*style_.indent);
  }
  template <class WriteItem>
  void write_items(std::string_view brackets, std::size_t count, std::size_t depth, WriteItem write_item) {
    add(brackets.substr(0, 1));
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) add(style_.item_separator);
      line(depth + 1);
      write_item(i);
    }
    if (count > 0) line(depth);
    add(brackets.substr(1));
  }
  void write_dict(const Dict& dict, std::size_t depth) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    write_items("{}", items.size(), depth, [&](std::size_t i) {
      write_string(Text(items[i]->first, kComputed));
      add(style_.key_separator);
      write(items[i]->second, depth + 1);
    });
  }

  const JsonStyle& style_;
};

}  // namespace

Value from_json(const nlohmann::ordered_json& json, Origin origin, int depth) {
  if (depth >= Value::kMaxDepth - 2) throw DataError("", "JSON is nested deeper than 98 levels");
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean: return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer: return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto value = json.get<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(INT64_MAX)) {
        throw DataError("", "the integer {} is beyond 64 bits; write it as a string", value);
      }
      return static_cast<std::int64_t>(value);
    }
    case nlohmann::ordered_json::value_t::number_float: return json.get<double>();
    case nlohmann::ordered_json::value_t::string: return Value::string(json.get_ref<const std::string&>(), origin);
    case nlohmann::ordered_json::value_t::array: {
      List list;
      for (const auto& item : json) list.push_back(from_json(item, origin, depth + 1));
      return list;
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.items.emplace_back(key, from_json(item, origin, depth + 1));
      return dict;
    }
    default: return None{};
  }
}

Field field_named(std::string_view key) {
  if (key == "role") return Field::kRole;
  if (key == "content") return Field::kContent;
  if (key == "reasoning_content" || key == "reasoning" || key == "thinking") return Field::kReasoning;
  return key == "tool_calls" ? Field::kToolCalls : Field::kOther;
}

Value message_from_json(const nlohmann::ordered_json& json, int message) {
  Dict dict;
  dict.message = message;
  for (const auto& [key, item] : json.items()) {
    dict.items.emplace_back(key, from_json(item, origin_of(message, field_named(key))));
  }
  return dict;
}

Text to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

std::vector<std::size_t> char_positions(const std::string& text) {
  spend_bytes(8 * text.size());
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i])) positions.push_back(i);
  }
  positions.push_back(text.size());
  return positions;
}

void spend_search(std::size_t text_size, std::size_t needle_size) {
  // Both are at most 16 MiB, so the product fits.
  spend_bytes(text_size * (1 + needle_size / 64));
}

}  // namespace lora_train::tokenizer::jinja
