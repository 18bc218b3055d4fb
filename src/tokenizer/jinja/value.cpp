#include "value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "lora_train/base/utf8.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

std::string string_repr(const std::string& text) {
  const bool double_quoted = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\\' || c == quote)
      (out += '\\') += c;
    else
      out += c;
  }
  return out + quote;
}

void append_json_string(const std::string& text, bool ensure_ascii, std::string& out) {
  const auto escape = [&out](std::uint32_t unit) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "\\u%04x", unit);
    out += buffer;
  };
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    const std::size_t length = c.length == 0 ? 1 : c.length;
    switch (c.code_point) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c.code_point < 0x20 || (ensure_ascii && c.code_point >= 0x7F && c.code_point < 0x10000)) {
          escape(c.code_point);
        } else if (ensure_ascii && c.code_point >= 0x10000) {
          escape(0xD800U + ((c.code_point - 0x10000U) >> 10U));
          escape(0xDC00U + ((c.code_point - 0x10000U) & 0x3FFU));
        } else {
          out.append(text, at, length);
        }
    }
    at += length;
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(int indent, bool ensure_ascii, bool sort_keys)
      : indent_(indent), ensure_ascii_(ensure_ascii), sort_keys_(sort_keys) {}

  void write(const Value& value, int depth) {
    if (const auto* list = value.as_list()) return write_list(*list, depth);
    if (const auto* dict = value.as_dict()) return write_dict(*dict, depth);
    if (const auto* text = value.as_text()) return append_json_string(text->bytes(), ensure_ascii_, out);
    if (const auto* flag = value.as_bool())
      out += *flag ? "true" : "false";
    else if (value.is_none())
      out += "null";
    else if (value.is_number())
      out += value.str().bytes();
    else
      throw RenderError{"Object of type " + value.type_name() + " is not JSON serializable"};
  }

  std::string out;

 private:
  void line(int depth) {
    if (indent_ < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(indent_ * depth), ' ');
  }
  void separate(bool first, int depth) {
    if (!first) out += indent_ < 0 ? ", " : ",";
    line(depth);
  }
  void write_list(const List& list, int depth) {
    out += '[';
    for (std::size_t i = 0; i < list.size(); ++i) {
      separate(i == 0, depth + 1);
      write(list[i], depth + 1);
    }
    if (!list.empty()) line(depth);
    out += ']';
  }
  void write_dict(const Dict& dict, int depth) {
    auto items = dict.items;
    if (sort_keys_)
      std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    out += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth + 1);
      append_json_string(items[i].first, ensure_ascii_, out);
      out += ": ";
      write(items[i].second, depth + 1);
    }
    if (!items.empty()) line(depth);
    out += '}';
  }

  int indent_;
  bool ensure_ascii_, sort_keys_;
};

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
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
  holds_namespace_ = holds_namespace_ || item.holds_namespace_;
  if (depth_ > kMaxDepth) throw RenderError{"lists and dictionaries are nested deeper than 100 levels", true};
}

Value::Value(List list) : depth_(1) {
  for (const Value& item : list) hold(item);
  data = std::make_shared<List>(std::move(list));
}

Value::Value(Dict dict) : depth_(1), holds_namespace_(dict.is_namespace) {
  for (const auto& item : dict.items) hold(item.second);
  data = std::make_shared<Dict>(std::move(dict));
}

Dict* Value::as_namespace() const {
  const auto* dict = std::get_if<std::shared_ptr<Dict>>(&data);
  return dict != nullptr && (*dict)->is_namespace ? dict->get() : nullptr;
}

double Value::number() const { return as_double() != nullptr ? *as_double() : static_cast<double>(whole()); }

std::int64_t Value::whole() const {
  if (const auto* flag = as_bool()) return *flag ? 1 : 0;
  return *as_int();
}

bool Value::truth() const {
  if (const auto* text = as_text()) return !text->empty();
  if (const auto* list = as_list()) return !list->empty();
  if (const auto* dict = as_dict()) return dict->is_namespace || !dict->items.empty();
  if (is_number()) return number() != 0.0;
  return as_callable() != nullptr || as_loop() != nullptr;
}

std::string Value::type_name() const {
  static const char* const names[] = {"Undefined", "NoneType", "bool", "int",      "float",
                                      "str",       "list",     "dict", "function", "loop"};
  return names[data.index()];
}

Text Value::str() const {
  if (const auto* text = as_text()) return *text;
  if (is_undefined()) return {};
  return {repr(), kTemplate};
}

std::string Value::repr() const {
  if (const auto* text = as_text()) return string_repr(text->bytes());
  if (is_none()) return "None";
  if (is_undefined()) return "Undefined";
  if (const auto* flag = as_bool()) return *flag ? "True" : "False";
  if (const auto* whole_number = as_int()) return std::to_string(*whole_number);
  if (const auto* real = as_double()) return float_repr(*real);
  std::string out;
  if (const auto* list = as_list()) {
    for (const Value& item : *list) out += (out.empty() ? "" : ", ") + item.repr();
    if (is_tuple_) return "(" + out + (list->size() == 1 ? ",)" : ")");
    return "[" + out + "]";
  }
  if (const auto* dict = as_dict()) {
    for (const auto& [key, value] : dict->items)
      out += (out.empty() ? "" : ", ") + string_repr(key) + ": " + value.repr();
    return "{" + out + "}";
  }
  return "<" + type_name() + ">";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  }
  if (a.data.index() != b.data.index()) return false;
  if (const auto* text = a.as_text()) return text->bytes() == b.as_text()->bytes();
  if (const auto* list = a.as_list()) {
    const List& other = *b.as_list();
    if (list->size() != other.size()) return false;
    for (std::size_t i = 0; i < other.size(); ++i) {
      if (!equal((*list)[i], other[i])) return false;
    }
    return true;
  }
  if (const auto* dict = a.as_dict()) {
    const Dict& other = *b.as_dict();
    if (dict == &other) return true;
    if (dict->items.size() != other.items.size()) return false;
    for (const auto& [key, value] : dict->items) {
      const Value* twin = other.find(key);
      if (twin == nullptr || !equal(value, *twin)) return false;
    }
    return true;
  }
  return a.is_none() || a.is_undefined();
}

Value from_json(const nlohmann::ordered_json& json, Origin origin, int depth) {
  if (depth >= Value::kMaxDepth - 2) throw DataError("", "JSON is nested deeper than 98 levels");
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto value = json.get<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(INT64_MAX)) return json.get<double>();
      return static_cast<std::int64_t>(value);
    }
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return Value::string(json.get_ref<const std::string&>(), origin);
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
    default:
      return None{};
  }
}

Value message_from_json(const nlohmann::ordered_json& json, int message) {
  Dict dict;
  dict.message = message;
  for (const auto& [key, item] : json.items()) {
    const Field field = key == "role" ? Field::kRole : key == "content" ? Field::kContent : Field::kOther;
    dict.items.emplace_back(key, from_json(item, origin_of(message, field)));
  }
  return dict;
}

std::string to_json(const Value& value, int indent, bool ensure_ascii, bool sort_keys) {
  JsonWriter writer(indent, ensure_ascii, sort_keys);
  writer.write(value, 0);
  return std::move(writer.out);
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

}  // namespace lora_train::tokenizer::jinja
