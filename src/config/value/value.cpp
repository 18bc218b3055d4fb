#include "lora_train/config/value/value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "lora_train/base/text.h"

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

std::string item_problem(const Value& list, std::size_t index) {
  return "there is no item " + std::to_string(index) + ": the list has " + std::to_string(list.items.size()) +
         ". [+] appends one.";
}

// A new item shares its place with the value that is set, so that later mistakes name it.
Value& new_item(Value& list, const Value& value) {
  Value item;
  item.place = value.place;
  list.items.push_back(std::move(item));
  return list.items.back();
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

std::optional<std::vector<PathStep>> parse_setting_path(const std::string& path) {
  std::vector<PathStep> steps;
  std::size_t at = 0;
  while (at < path.size()) {
    if (path[at] == '[') {
      const std::size_t close = path.find(']', at);
      if (close == std::string::npos || steps.empty()) return std::nullopt;
      const std::string inside = path.substr(at + 1, close - at - 1);
      const auto index = parse_integer(inside);
      if (inside != "+" && (!index || *index < 0)) return std::nullopt;
      steps.push_back({"", inside == "+" ? 0 : static_cast<std::size_t>(*index), inside == "+"});
      at = close + 1;
    } else {
      if (path[at] == '.' && steps.empty()) return std::nullopt;
      if (path[at] == '.') ++at;
      const std::size_t end = std::min(path.find_first_of(".[", at), path.size());
      if (end == at) return std::nullopt;
      steps.push_back({path.substr(at, end - at), 0, false});
      at = end;
    }
  }
  return steps.empty() ? std::nullopt : std::optional(std::move(steps));
}

std::string set_at(Value& root, const std::vector<PathStep>& steps, std::size_t first, const Value& value) {
  if (first == steps.size()) {
    root = value;
    return {};
  }
  const PathStep& step = steps[first];
  if (step.is_name()) {
    if (root.is_null()) root.kind = Value::Kind::kMap;
    // `datasets: [a.jsonl]` names a path without a map around it.
    if (root.is_scalar()) {
      Value map;
      map.kind = Value::Kind::kMap;
      map.place = root.place;
      map.members.push_back({"path", root});
      root = std::move(map);
    }
    if (!root.is_map()) return "." + step.name + ": this is a list. Use [0] or [+] first.";
    Value* member = root.find(step.name);
    if (!member) {
      Value fresh;
      fresh.place = value.place;
      root.members.push_back({step.name, std::move(fresh)});
      member = &root.members.back().value;
    }
    return set_at(*member, steps, first + 1, value);
  }
  if (root.is_null()) root.kind = Value::Kind::kList;
  if (root.is_scalar()) {
    Value only = root;
    root = list_value({only});
    root.place = only.place;
  }
  if (!root.is_list()) return "this is a map. Name one of its keys.";
  if (step.is_append) return set_at(new_item(root, value), steps, first + 1, value);
  if (step.index >= root.items.size()) return item_problem(root, step.index);
  return set_at(root.items[step.index], steps, first + 1, value);
}

std::optional<bool> parse_bool(const std::string& text) {
  const std::string word = lower_case(text);
  if (word == "true" || word == "on" || word == "yes") return true;
  if (word == "false" || word == "off" || word == "no") return false;
  return std::nullopt;
}

std::optional<double> parse_number(const std::string& text) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const char* const first = begin != end && *begin == '-' ? begin + 1 : begin;
  // from_chars would also take "inf" and "nan".
  if (first == end || !(std::isdigit(static_cast<unsigned char>(*first)) || *first == '.')) return std::nullopt;
  double value = 0;
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t value = 0;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code == std::errc() && stop == end) return value;
  const auto number = parse_number(text);
  if (!number || *number != std::floor(*number) || std::fabs(*number) > 9e15) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<double> parse_duration(const std::string& text) {
  if (const auto seconds = parse_number(text)) return seconds;
  double total = 0;
  std::size_t at = 0;
  double last_unit = 1e9;
  while (at < text.size()) {
    const std::size_t unit_at = text.find_first_not_of("0123456789.", at);
    if (unit_at == std::string::npos || unit_at == at) return std::nullopt;
    const auto count = parse_number(text.substr(at, unit_at - at));
    const char letter = text[unit_at];
    const double unit = letter == 'd' ? 86400 : letter == 'h' ? 3600 : letter == 'm' ? 60 : letter == 's' ? 1 : 0;
    if (!count || unit == 0 || unit >= last_unit) return std::nullopt;
    total += *count * unit;
    last_unit = unit;
    at = unit_at + 1;
  }
  return text.empty() ? std::nullopt : std::optional<double>(total);
}

std::string duration_text(double seconds) {
  if (seconds != std::floor(seconds) || seconds < 1 || seconds > 1e9) return number_value(seconds).text;
  auto left = static_cast<long long>(seconds);
  std::string out;
  for (const auto& [letter, unit] : {std::pair{'h', 3600LL}, std::pair{'m', 60LL}, std::pair{'s', 1LL}}) {
    if (left >= unit) out += std::to_string(left / unit) + letter;
    left %= unit;
  }
  return out;
}

}  // namespace lora_train
