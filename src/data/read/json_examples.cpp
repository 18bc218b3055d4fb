#include "json_examples.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_set>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::data {
namespace {

// Feeds nlohmann's lexer and tracks how far it has read, which its SAX events do not tell.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** consumed) : at_(at), consumed_(consumed) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    constexpr std::uintptr_t kLookEvery = std::uintptr_t{1} << 16;  // bytes
    *consumed_ = ++at_;
    if (reinterpret_cast<std::uintptr_t>(at_) % kLookEvery == 0) throw_if_stop_requested();
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** consumed_;
};

// The message "[json.exception...] parse error at line 1, column 9: syntax error while parsing object - unexpected end
// of input; last read: '...'; expected '}'" without its own place and without the quoted text, which may be long or
// invalid UTF-8.
std::string reason_of(std::string what) {
  const auto cut_through = [&](std::string_view mark) {
    if (const auto at = what.find(mark); at != std::string::npos) {
      what.erase(0, at + mark.size());
    }
  };
  if (what.find("number overflow") != std::string::npos) return "a number out of range";
  cut_through("column ");
  cut_through(": ");
  cut_through("syntax error while parsing ");
  if (const auto quote = what.find("; last read: '"); quote != std::string::npos) {
    const auto expected = what.rfind("; expected ");
    what.erase(quote, expected == std::string::npos || expected < quote ? std::string::npos : expected - quote);
  }
  return what;
}

// The outermost value: an example, an array of examples, or anything.
enum class Root { kRow, kRows, kValue };

/// The kind of a value, for messages.
std::string name_of(const Json& value) {
  if (value.is_binary()) return "NaN, Infinity or an integer beyond 64 bits";
  const bool is_bytes = value.size() == 1 && value.contains("bytes");  // of a table
  return is_bytes ? "bytes that are not UTF-8" : value.type_name();
}

class ExampleBuilder {
 public:
  using OnExample = std::function<void(JsonExample&&)>;

  /// `given` is the text before quote_constants().
  ExampleBuilder(std::string_view text, std::string_view given, Root root, const OnExample& on_example)
      : begin_(text.data()), consumed_(text.data()), given_(given), root_(root), on_example_(on_example) {}

  const char** consumed() { return &consumed_; }
  std::size_t position() const { return static_cast<std::size_t>(consumed_ - begin_); }
  const std::optional<JsonProblem>& syntax_problem() const { return syntax_problem_; }
  /// Problem of the last example read.
  const std::optional<JsonProblem>& example_problem() const { return example_.problem; }

  // nlohmann's SAX interface; false ends the parse.
  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(Json::number_integer_t value) { return scalar(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return scalar(value, value <= INT64_MAX); }
  bool number_float(Json::number_float_t value, const std::string& text) {
    return scalar(value, text.find_first_of(".eE") != std::string::npos);
  }
  bool string(std::string& value) {
    if (given_[last_byte()] == '"') return scalar(std::move(value));
    // NaN or Infinity: in a column of its own, pandas writes it for a missing value.
    return scalar(depth_ == 1 && root_ != Root::kValue ? Json() : Json::binary({}));
  }
  bool binary(Json::binary_t&) { return false; }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) {
    if (root_ == Root::kRows && !is_in_root_) {
      is_in_root_ = true;
      return true;
    }
    return open(Json::array());
  }
  bool end_array() { return depth_ == 0 ? true : close(); }

  bool key(std::string& name) {
    if (example_.problem) return true;
    Level& level = open_.back();
    level.key = name;
    if (!level.keys.insert(std::move(name)).second) {
      fail(fmt::format("duplicate key \"{}\"; an object has each key once", level.key.substr(0, 60)));
    } else if (level.keys.size() > kMaxJsonFields) {
      fail("an object with more than 10,000 fields");
    }
    return true;
  }

  template <typename Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception& error) {
    // The lexer's count includes the offending byte, and counts the end of the text as one more.
    syntax_problem_ = JsonProblem{position == 0 ? 0 : position - 1, reason_of(error.what())};
    return false;
  }

 private:
  // An open container.
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys = {};  // keys seen
    std::string key = {};                       // the last one
  };

  std::size_t last_byte() const { return position() == 0 ? 0 : position() - 1; }

  void fail(std::string message) {
    example_.problem = JsonProblem{last_byte(), std::move(message)};
    example_.value = nullptr;
    open_.clear();
  }

  // Destination of the next value: the example itself, the open array, or the open object under its last key.
  Json* place(Json&& value) {
    if (open_.empty()) {
      example_.value = std::move(value);
      return &example_.value;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // The key is new: push_back avoids ordered_json's search through all keys.
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(open_.back().key), std::move(value));
    return &members.back().second;
  }

  // is_exact: false for an integer that the chat template would write differently.
  bool scalar(Json&& value, bool is_exact = true) {
    if (depth_ == 0) begin_row();
    check_size();
    if (depth_ == 0 && root_ != Root::kValue) {
      fail(fmt::format("the example is {}, expected an object {{...}}", value.type_name()));
    } else if (!example_.problem) {
      place(is_exact ? std::move(value) : Json::binary({}));
    }
    if (depth_ == 0) end_row();
    return true;
  }

  bool open(Json&& empty) {
    if (depth_ == 0) {
      begin_row();
      if (empty.is_array() && root_ != Root::kValue) {
        fail("the example is an array, expected an object {...}");
      }
    }
    check_size();
    if (++depth_ > kMaxJsonDepth && !example_.problem) {
      fail(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    }
    if (!example_.problem) open_.push_back({place(std::move(empty))});
    return true;
  }

  bool close() {
    check_size();
    if (!example_.problem) open_.pop_back();
    if (--depth_ == 0) end_row();
    return true;
  }

  void begin_row() {
    example_ = JsonExample{};
    example_.offset = last_byte();
    open_.clear();
  }

  void check_size() {
    if (!example_.problem && position() - example_.offset > kMaxExampleBytes) {
      fail("the example is longer than 64 MiB");
    }
  }

  void end_row() {
    example_.end = position();
    on_example_(std::move(example_));
  }

  const char* begin_;
  const char* consumed_;
  std::string_view given_;
  Root root_;
  const OnExample& on_example_;
  bool is_in_root_ = false;
  int depth_ = 0;
  JsonExample example_;
  std::vector<Level> open_;  // the example first
  std::optional<JsonProblem> syntax_problem_;
};

/// The text with NaN, Infinity and -Infinity, which the lexer does not know, as strings of their length; empty without
/// any.
std::string quote_constants(std::string_view text) {
  std::string quoted;
  if (text.find("NaN") == std::string_view::npos && text.find("Infinity") == std::string_view::npos) return quoted;
  bool is_in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') is_in_string = !is_in_string;
    if (is_in_string) {
      at += text[at] == '\\' ? 1 : 0;
      continue;
    }
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (!text.substr(at).starts_with(name)) continue;
      if (quoted.empty()) quoted = text;
      quoted[at] = quoted[at + name.size() - 1] = '"';
      at += name.size() - 1;
    }
  }
  return quoted;
}

std::optional<JsonProblem> parse(std::string_view given, Root root, const ExampleBuilder::OnExample& on_example,
                                 std::optional<JsonProblem>* example_problem = nullptr) {
  const std::string quoted = quote_constants(given);
  const std::string_view text = quoted.empty() ? given : quoted;
  ExampleBuilder builder(text, given, root, on_example);
  const CountingIterator first(text.data(), builder.consumed());
  const CountingIterator last(text.data() + text.size(), builder.consumed());
  const bool is_good = Json::sax_parse(first, last, &builder);
  if (example_problem != nullptr) *example_problem = builder.example_problem();
  if (!is_good) {
    const JsonProblem& problem = *builder.syntax_problem();
    return JsonProblem{problem.offset, "invalid JSON: " + problem.message};
  }
  // nlohmann treats a NUL byte as the end of the text.
  if (builder.position() > 0 && text[builder.position() - 1] == '\0') {
    return JsonProblem{builder.position() - 1, "invalid JSON: a NUL byte"};
  }
  return std::nullopt;
}

JsonExample parse_one(std::string_view text, Root root) {
  JsonExample found;
  std::optional<JsonProblem> last_problem;
  const ExampleBuilder::OnExample keep = [&](JsonExample&& example) { found = std::move(example); };
  if (auto problem = parse(text, root, keep, &last_problem)) {
    // Users should fix the earliest problem first.
    const auto& earlier = found.problem ? found.problem : last_problem;
    found.problem = earlier && earlier->offset < problem->offset ? earlier : problem;
  }
  return found;
}

float weight_number(const Json& weight, const std::string& field) {
  constexpr auto kExpected = "0 (not trained) or a positive number";
  if (!weight.is_number()) wrong_type(field, weight, kExpected);
  const auto value = static_cast<float>(weight.get<double>());
  if (weight.get<double>() != 0.0 && !(std::isnormal(value) && value > 0)) {
    throw DataError("", field + " is " + weight.dump() + "; the weight of a turn is " + kExpected +
                            " from 1.2e-38 to 3.4e38. To weight whole datasets, set `weight` in the profile");
  }
  return std::abs(value);  // 0 for -0
}

}  // namespace

JsonExample parse_json_example(std::string_view text) { return parse_one(text, Root::kRow); }

JsonExample parse_json_value(std::string_view text) { return parse_one(text, Root::kValue); }

std::optional<JsonProblem> parse_json_array(std::string_view text,
                                            const std::function<void(JsonExample&&)>& on_example) {
  return parse(text, Root::kRows, on_example);
}

std::string name_in(const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  return mapped == map.end() ? field : mapped->second;
}

bool is_unread(const FieldMap& map, const std::string& field) {
  const auto mapped = map.find(field);
  return mapped != map.end() && mapped->second.empty();
}

const Json* optional_field(const Json& object, const FieldMap& map, const std::string& field) {
  if (is_unread(map, field)) return nullptr;
  const auto found = object.find(name_in(map, field));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& required(const Json& object, const FieldMap& map, const std::string& field) {
  if (const Json* value = optional_field(object, map, field)) return *value;
  const std::string name = name_in(map, field);
  throw DataError("", "\"{}\" is {}", name, object.contains(name) ? "null" : "missing");
}

const std::string& string_of(const Json& value, const std::string& field) {
  if (!value.is_string()) wrong_type(field, value, "a string");
  return value.get_ref<const std::string&>();
}

void wrong_type(const std::string& field, const Json& value, const std::string& expected) {
  throw DataError("", "{} is {}, expected {}", field, name_of(value), expected);
}

void refuse_bad_numbers(const Json& value, const std::string& field) {
  if (value.is_binary()) throw DataError("", "{} has {}; write a string or null", field, name_of(value));
  for (const Json& item : value) {
    if (item.is_structured() || item.is_binary()) refuse_bad_numbers(item, field);
  }
}

Json inner_json(const std::string& text, const std::string& field) {
  JsonExample parsed = parse_json_value(text);
  if (parsed.problem)
    throw DataError("", "{} is a string, but its text was rejected: {}", field, parsed.problem->message);
  refuse_bad_numbers(parsed.value, field);
  return std::move(parsed.value);
}

std::string printable(const std::string& text, std::size_t max_bytes) {
  std::size_t end = std::min(text.size(), max_bytes);
  while (end > 0 && end < text.size() && is_continuation(text[end])) --end;  // a cut must not split a character
  std::string out;
  for (const char c : visible_text(text.substr(0, end))) out += c == '\n' ? "\\n" : std::string(1, c);
  return out + (end < text.size() ? "..." : "");
}

std::string key_names(const Json& example) {
  std::vector<std::string> names;
  for (const auto& item : example.items()) {
    if (names.size() < 20) names.push_back(printable(item.key(), 40));
  }
  return join(names);
}

std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place) {
  const Json* const weight = optional_field(message, map, "weight");
  if (!is_unread(map, "train") && optional_field(message, map, "train_detail") != nullptr) {
    throw DataError("",
                    place + ".train_detail is not supported: a turn is trained whole or not at all (train, weight)");
  }
  std::optional<float> value;
  std::string first = "weight";
  if (weight != nullptr) value = weight_number(*weight, place + ".weight");
  for (const char* name : kTurnMarks) {
    const Json* const mark = optional_field(message, map, name);
    if (mark == nullptr) continue;
    const bool is_on = *mark == true || *mark == 1;
    if (!is_on && *mark != false && *mark != 0) wrong_type(fmt::format("{}.{}", place, name), *mark, "true or false");
    const bool is_trained = is_on != (std::string_view(name) == "masked");
    if (value && is_trained != (*value > 0)) {
      throw DataError("", "{}: {} is {} and {} is {}; keep one of them", place, name, mark->dump(), first,
                      required(message, map, first).dump());
    }
    if (!value) first = name;
    value = value.value_or(is_trained ? 1.0F : 0.0F);
  }
  return value;
}

}  // namespace lora_train::data
