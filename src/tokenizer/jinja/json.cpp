#include "json.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

// One character as it stands between the quotes.
std::string json_char(std::uint32_t code, std::string_view bytes, bool ensure_ascii) {
  switch (code) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    case '\b': return "\\b";
    case '\f': return "\\f";
    default: break;
  }
  if (code >= 0x20 && (!ensure_ascii || code < 0x7F)) return std::string(bytes);
  if (code < 0x10000) return string_printf("\\u%04x", code);
  return string_printf("\\u%04x\\u%04x", 0xD800U + ((code - 0x10000U) >> 10U), 0xDC00U + ((code - 0x10000U) & 0x3FFU));
}

// Writes into a Text, so that strings of the chat stay the chat's.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, std::size_t depth) {
    spend_bytes(64);
    if (const auto* list = value.as_list(); list != nullptr && value.list_kind() <= ListKind::kTuple)
      return write_list(*list, depth);
    if (const auto* dict = value.as_dict(); dict != nullptr && !dict->is_namespace) return write_dict(*dict, depth);
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
      throw RenderError{"Object of type " + value.type_name() + " is not JSON serializable"};
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
  void separate(bool first, std::size_t depth) {
    if (!first) add(style_.item_separator);
    line(depth);
  }
  void write_list(const List& list, std::size_t depth) {
    add("[");
    for (std::size_t i = 0; i < list.size(); ++i) {
      separate(i == 0, depth + 1);
      write(list[i], depth + 1);
    }
    if (!list.empty()) line(depth);
    add("]");
  }
  void write_dict(const Dict& dict, std::size_t depth) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    add("{");
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth + 1);
      write_string(Text(items[i]->first, kComputed));
      add(style_.key_separator);
      write(items[i]->second, depth + 1);
    }
    if (!items.empty()) line(depth);
    add("}");
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
        throw DataError("", "the integer " + std::to_string(value) + " is beyond 64 bits; write it as a string");
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

}  // namespace lora_train::tokenizer::jinja
