#include "lora_train/config/value/value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "lora_train/base/text.h"
#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

Value scalar_value(Value::Kind kind, std::string text) {
  Value value;
  value.kind = kind;
  value.text = std::move(text);
  return value;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Text that every YAML reader takes for a string without quotes.
bool is_safe_plain(const std::string& text) {
  if (parse_duration(text) && !parse_number(text)) return true;
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/' || text[0] == '_')) {
    return false;
  }
  const bool harmless = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' || c == '-';
  });
  return harmless && !parse_bool(text) && lower_case(text) != "null" && lower_case(text) != "y" &&
         lower_case(text) != "n";
}

std::string double_dollars(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '{') out += '$';
    out += text[i];
  }
  return out;
}

std::string flow_text(const std::string& text) {
  const std::string escaped = double_dollars(text);
  return is_safe_plain(escaped) ? escaped : quoted(escaped);
}

}  // namespace

const Value* Value::find(const std::string& name) const {
  for (const auto& [key, member] : members) {
    if (key == name) return &member;
  }
  return nullptr;
}

Value* Value::find(const std::string& name) { return const_cast<Value*>(std::as_const(*this).find(name)); }

Value null_value() { return {}; }
Value bool_value(bool value) { return scalar_value(Value::Kind::kBool, value ? "true" : "false"); }
Value integer_value(long long value) { return scalar_value(Value::Kind::kNumber, std::to_string(value)); }
Value text_value(std::string text) { return scalar_value(Value::Kind::kText, std::move(text)); }

Value number_value(double value) {
  char text[64];
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end =
      std::to_chars(text, text + sizeof text, value, fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(text, end.ptr);
  if (fixed) return scalar_value(Value::Kind::kNumber, out);
  const std::size_t e = out.find('e');
  std::string mantissa = out.substr(0, e), exponent = out.substr(e + 2);
  if (mantissa.find('.') == std::string::npos) mantissa += ".0";
  exponent.erase(0, std::min(exponent.find_first_not_of('0'), exponent.size() - 1));
  return scalar_value(Value::Kind::kNumber, mantissa + "e" + out[e + 1] + exponent);
}

Value list_value(std::vector<Value> items) {
  Value value;
  value.kind = Value::Kind::kList;
  value.items = std::move(items);
  return value;
}

std::string to_flow_yaml(const Value& value) {
  std::string out;
  switch (value.kind) {
    case Value::Kind::kNull: return "null";
    case Value::Kind::kBool:
    case Value::Kind::kNumber: return value.text;
    case Value::Kind::kText: return flow_text(value.text);
    case Value::Kind::kList:
      for (const auto& item : value.items) out += (out.empty() ? "" : ", ") + to_flow_yaml(item);
      return "[" + out + "]";
    case Value::Kind::kMap:
      for (const auto& [key, member] : value.members) {
        out += (out.empty() ? "" : ", ") + (is_safe_plain(key) ? key : quoted(key)) + ": " + to_flow_yaml(member);
      }
      return "{" + out + "}";
  }
  return out;
}

std::string to_json_text(const Value& value) {
  std::string out;
  switch (value.kind) {
    case Value::Kind::kNull: return "null";
    case Value::Kind::kBool:
    case Value::Kind::kNumber: return value.text;
    case Value::Kind::kText: return quoted(value.text);
    case Value::Kind::kList:
      for (const auto& item : value.items) out += (out.empty() ? "" : ", ") + to_json_text(item);
      return "[" + out + "]";
    case Value::Kind::kMap:
      for (const auto& [key, member] : value.members) {
        out += (out.empty() ? "" : ", ") + quoted(key) + ": " + to_json_text(member);
      }
      return "{" + out + "}";
  }
  return out;
}

}  // namespace lora_train
