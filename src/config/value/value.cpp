#include "lora_train/config/value/value.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

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
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Text that every YAML reader reads as a string without quotes.
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

/// `value` in one line, with `text_of` and `key_of` for texts and keys.
std::string written(const Value& value, const auto& text_of, const auto& key_of) {
  std::vector<std::string> parts;
  switch (value.kind) {
    case Value::Kind::kNull: return "null";
    case Value::Kind::kBool:
    case Value::Kind::kNumber: return value.text;
    case Value::Kind::kText: return text_of(value.text);
    case Value::Kind::kList:
      for (const auto& item : value.items) parts.push_back(written(item, text_of, key_of));
      return fmt::format("[{}]", join(parts));
    case Value::Kind::kMap:
      for (const auto& [key, member] : value.members)
        parts.push_back(fmt::format("{}: {}", key_of(key), written(member, text_of, key_of)));
      return fmt::format("{{{}}}", join(parts));
  }
  return {};
}

std::string item_problem(const Value& list, std::size_t index) {
  return fmt::format("there is no item {}: the list has {}. [+] appends one.", index, list.items.size());
}

// A new item shares its place with the value that is set, so that later mistakes name it.
Value& new_item(Value& list, const Value& value) {
  Value item;
  item.place = value.place;
  list.items.push_back(std::move(item));
  return list.items.back();
}

constexpr std::size_t kMaxValues = 10'000;  // far above any profile; bounds what nested anchors can expand to
constexpr std::size_t kMaxBytes = 4 << 20;
constexpr std::size_t kMaxKeyBytes = 1024;

std::size_t count_values(const Value& value) {
  std::size_t count = 1;
  for (const auto& item : value.items) count += count_values(item);
  for (const auto& [key, member] : value.members) count += count_values(member);
  return count;
}

// Builds Values from the parser's events. Nodes would lose repeated keys.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const Place& place) : place_(place) {}
  Value take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(at(mark), anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Value value = anchors_[anchor];
    count(mark, count_values(value));
    value.place = at(mark).place;
    add(std::move(value), 0);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    Value value = at(mark);
    if (text.find('\0') != std::string::npos) fail(value.place, "a text contains a NUL byte.");
    if (find_invalid_utf8(text)) {  // yaml-cpp makes them single bytes, 0x85 and 0xA0
      fail(value.place, "the escapes \\N and \\_ do not give valid UTF-8. Write the character itself.");
    }
    value.quoted = tag == "!";
    const bool is_null =
        !value.quoted && (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL");
    if (!is_null) {
      value.kind = Value::Kind::kText;
      value.text = text;
    }
    add(std::move(value), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, Value::Kind::kList, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, Value::Kind::kMap, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Value value;
    YAML::anchor_t anchor;
    std::string key;
    Place key_place;
    bool has_key = false;
    bool merges = false;       ///< the next value is that of a plain `<<`
    std::vector<Value> bases;  ///< the maps that `<<` named, the winner first
  };

  int line(const YAML::Mark& mark) const { return place_.line > 0 || mark.line < 0 ? place_.line : mark.line + 1; }

  [[noreturn]] void fail(const Place& place, const std::string& what) { throw ConfigError(place.text(), what); }

  void count(const YAML::Mark& mark, std::size_t more) {
    num_values_ += more;
    if (num_values_ > kMaxValues) fail({place_.file, line(mark)}, "more than 10000 values. A profile has a few dozen.");
  }

  Value at(const YAML::Mark& mark) {
    count(mark, 1);
    Value value;
    value.place = {place_.file, line(mark)};
    return value;
  }

  void open(const YAML::Mark& mark, Value::Kind kind, YAML::anchor_t anchor) {
    Value value = at(mark);
    value.kind = kind;
    levels_.push_back({std::move(value), anchor, "", {}, false, false, {}});
  }

  void close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    for (const auto& base : level.bases) {
      for (const auto& member : base.members) {
        if (!level.value.find(member.name)) level.value.members.push_back(member);
      }
    }
    add(std::move(level.value), level.anchor);
  }

  void add(Value value, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = value;
    if (levels_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = levels_.back();
    if (level.value.is_list()) {
      if (value.is_null() && level.value.items.empty()) value.place = level.value.place;  // see below
      level.value.items.push_back(std::move(value));
    } else if (!level.has_key) {
      take_key(level, value);
    } else {
      // A missing value's mark is where the parser found something else: the next key, on a later line.
      if (value.is_null()) value.place = level.key_place;
      level.has_key = false;
      if (level.merges) {
        take_bases(level, std::move(value));
      } else {
        level.value.members.push_back({level.key, std::move(value)});
      }
    }
  }

  // YAML 1.1's merge key. The map's own members win, wherever they are; among several maps, the earlier.
  void take_bases(Level& level, Value value) {
    std::vector<Value> bases = value.is_list() ? std::move(value.items) : std::vector<Value>{std::move(value)};
    for (auto& base : bases) {
      if (!base.is_map()) fail(level.key_place, "<<: expected a map or a list of maps, such as `<<: *base`.");
      level.bases.push_back(std::move(base));
    }
  }

  void take_key(Level& level, const Value& key) {
    if (!key.is_scalar()) fail(key.place, "a key must be text. Is a colon or a bracket misplaced?");
    if (key.text.size() > kMaxKeyBytes) fail(key.place, fmt::format("a key of {} characters.", key.text.size()));
    if (const Value* first = level.value.find(key.text)) {
      fail(key.place, key.text + ": occurs twice in one map (first at " + first->place.text() + "). Keep one.");
    }
    level.merges = key.text == "<<" && !key.quoted;
    if (level.merges && !level.bases.empty()) {
      fail(key.place, "<<: occurs twice in one map. Give a list: `<<: [*first, *second]`.");
    }
    level.key = key.text;
    level.key_place = key.place;
    level.has_key = true;
  }

  Place place_;
  Value root_;
  std::vector<Level> levels_;
  std::map<YAML::anchor_t, Value> anchors_;
  std::size_t num_values_ = 0;
};

bool is_json(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  return first != std::string::npos && (text[first] == '{' || text[first] == '[');
}

// Characters above U+FFFF are two escapes in JSON; yaml-cpp wants one of eight digits.
std::string join_surrogates(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    unsigned high = 0, low = 0;
    int length = 0;
    if (text[at] == '\\') std::sscanf(text.substr(at, 12).c_str(), "\\u%4x\\u%4x%n", &high, &low, &length);
    if (length == 12 && high >> 10 == 0xD800 >> 10 && low >> 10 == 0xDC00 >> 10) {
      out += fmt::format("\\U{:08X}", 0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF));
      at += 12;
    } else {
      const std::size_t num_chars = text[at] == '\\' ? 2 : 1;  // what follows a backslash does not begin an escape
      out += text.substr(at, num_chars);
      at += num_chars;
    }
  }
  return out;
}

// yaml-cpp's own message for a tab is about a missing value somewhere else. JSON may indent as it likes.
void refuse_tabs(const std::string& text, const Place& place) {
  if (is_json(text)) return;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    if (line.substr(0, begin).find('\t') != std::string::npos) {
      throw ConfigError(Place{place.file, number}.text(), "a tab in the indentation. YAML allows only spaces.");
    }
  }
}

}  // namespace

const Value* Value::find(const std::string& name) const {
  for (const auto& [key, member] : members) {
    if (key == name) return &member;
  }
  return nullptr;
}

Value* Value::find(const std::string& name) { return const_cast<Value*>(std::as_const(*this).find(name)); }

std::string Value::text_of(const std::string& name, const std::string& otherwise) const {
  const Value* value = find(name);
  return value && value->is_scalar() ? value->text : otherwise;
}

std::vector<Value> items_of(const Value& value) {
  if (value.is_list()) return value.items;
  return value.is_null() ? std::vector<Value>{} : std::vector<Value>{value};
}

std::vector<std::string> names_in(const Value& value) {
  std::vector<std::string> names;
  for (const Value& item : value.items) names.push_back(item.text);
  std::istringstream words(value.text);
  for (std::string word; std::getline(words, word, ',');) names.push_back(trimmed(word));
  std::erase(names, "");
  return names;
}

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
  return scalar_value(Value::Kind::kNumber, fmt::format("{}e{}{}", mantissa, out[e + 1], exponent));
}

Value list_value(std::vector<Value> items) {
  Value value;
  value.kind = Value::Kind::kList;
  value.items = std::move(items);
  return value;
}

Value map_value(std::vector<Value::Member> members) {
  Value value;
  value.kind = Value::Kind::kMap;
  value.members = std::move(members);
  return value;
}

std::string to_flow_yaml(const Value& value) {
  return written(value, flow_text, [](const std::string& key) { return is_safe_plain(key) ? key : quoted(key); });
}

std::string to_json_text(const Value& value) { return written(value, quoted, quoted); }

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
      const Place place = root.place;
      root = map_value({{"path", root}});
      root.place = place;
    }
    if (!root.is_map()) return fmt::format(".{}: this is a list. Use [0] or [+] first.", step.name);
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
    if (left >= unit) out += fmt::format("{}{}", left / unit, letter);
    left %= unit;
  }
  return out;
}

Value parse_yaml(const std::string& text, const Place& place) {
  if (text.size() > kMaxBytes) throw ConfigError(place.text(), "larger than 4 MiB. Is this a profile?");
  if (text.find('\0') != std::string::npos) {
    throw ConfigError(place.text(), "contains a NUL byte. A profile is YAML or JSON text in UTF-8.");
  }
  if (const auto at = find_invalid_utf8(text)) {
    const auto lines_before = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*at), '\n');
    const int line = place.line > 0 ? place.line : static_cast<int>(lines_before) + 1;
    throw ConfigError(Place{place.file, line}.text(), "not valid UTF-8. Save the file as UTF-8.");
  }
  refuse_tabs(text, place);
  // At a trailing line break, yaml-cpp takes an open quote for closed and swallows all settings after it.
  const std::string trimmed = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  std::istringstream stream(is_json(text) ? join_surrogates(trimmed) : trimmed);
  try {
    YAML::Parser parser(stream);
    Builder builder(place), second(place);
    parser.HandleNextDocument(builder);
    if (parser.HandleNextDocument(second)) {
      throw ConfigError(place.text(),
                        "contains more than one YAML document. Remove the line with '---', or what follows the last "
                        "brace of JSON.");
    }
    return builder.take();
  } catch (const YAML::Exception& error) {
    const int line = place.line > 0 || error.mark.line < 0 ? place.line : error.mark.line + 1;
    const bool is_too_deep = dynamic_cast<const YAML::DeepRecursion*>(&error) != nullptr;
    throw ConfigError(Place{place.file, line}.text(), "not valid YAML or JSON: {}.",
                      is_too_deep ? "nested too deep" : error.msg);
  }
}

}  // namespace lora_train
