#include "lora_train/config/value/parse_yaml.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"

namespace lora_train {
namespace {

constexpr std::size_t kMaxValues = 10'000;  // far above any profile; bounds what nested anchors can expand to
constexpr std::size_t kMaxBytes = 4 << 20;
constexpr std::size_t kMaxKeyBytes = 1024;

std::size_t count_values(const Value& value) {
  std::size_t count = 1;
  for (const auto& item : value.items) count += count_values(item);
  for (const auto& [key, member] : value.members) count += count_values(member);
  return count;
}

// Builds Values from the parser's events. Nodes would lose keys that stand twice.
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
    if (find_invalid_utf8(text)) {  // yaml-cpp makes one byte of them, 0x85 and 0xA0
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
    bool merges = false;       ///< the value to come is that of a plain `<<`
    std::vector<Value> bases;  ///< what `<<` named, the one that wins first
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
      // The mark of a value that is not there is where the parser found something else: the next key, on a later line.
      if (value.is_null()) value.place = level.key_place;
      level.has_key = false;
      if (level.merges) {
        take_bases(level, std::move(value));
      } else {
        level.value.members.push_back({level.key, std::move(value)});
      }
    }
  }

  // YAML 1.1's merge key. What the map itself says wins, wherever it stands; of several maps, the earlier.
  void take_bases(Level& level, Value value) {
    std::vector<Value> bases = value.is_list() ? std::move(value.items) : std::vector<Value>{std::move(value)};
    for (auto& base : bases) {
      if (!base.is_map()) fail(level.key_place, "<<: expected a map or a list of maps, such as `<<: *base`.");
      level.bases.push_back(std::move(base));
    }
  }

  void take_key(Level& level, const Value& key) {
    if (!key.is_scalar()) fail(key.place, "a key must be text. Is a colon or a bracket misplaced?");
    if (key.text.size() > kMaxKeyBytes) fail(key.place, "a key of " + std::to_string(key.text.size()) + " characters.");
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

// The number of a \uXXXX at `at` when it is one from `first` to `first` + 0x3FF, half of a surrogate pair; else -1.
long surrogate(const std::string& text, std::size_t at, long first) {
  if (text.compare(at, 2, "\\u") != 0 || at + 6 > text.size()) return -1;
  const std::string digits = text.substr(at + 2, 4);
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return -1;
  const long number = std::stol(digits, nullptr, 16);
  return number >= first && number <= first + 0x3FF ? number : -1;
}

// Characters above U+FFFF are two escapes in JSON; yaml-cpp wants one of eight digits.
std::string join_surrogates(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const long high = surrogate(text, at, 0xD800);
    const long low = high < 0 ? -1 : surrogate(text, at + 6, 0xDC00);
    if (low >= 0) {
      char escape[16];
      std::snprintf(escape, sizeof escape, "\\U%08lX", 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
      out += escape;
      at += 12;
    } else {
      const std::size_t length = text[at] == '\\' ? 2 : 1;  // what follows a backslash begins no escape
      out += text.substr(at, length);
      at += length;
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
  // At a line break at the end, yaml-cpp takes an open quote for closed and swallows all settings behind it.
  const std::string trimmed = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  std::istringstream stream(is_json(text) ? join_surrogates(trimmed) : trimmed);
  try {
    YAML::Parser parser(stream);
    Builder builder(place), second(place);
    parser.HandleNextDocument(builder);
    if (parser.HandleNextDocument(second)) {
      throw ConfigError(place.text(),
                        "contains more than one YAML document. Remove the line with '---', or what follows the "
                        "last brace of JSON.");
    }
    return builder.take();
  } catch (const YAML::Exception& error) {
    const int line = place.line > 0 || error.mark.line < 0 ? place.line : error.mark.line + 1;
    const bool is_too_deep = dynamic_cast<const YAML::DeepRecursion*>(&error) != nullptr;
    throw ConfigError(Place{place.file, line}.text(),
                      "not valid YAML or JSON: " + (is_too_deep ? "nested too deep" : error.msg) + ".");
  }
}

}  // namespace lora_train
