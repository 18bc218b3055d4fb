#include "json_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "lora_train/base/stop_request.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::size_t kMaxDepth = 256;

// Like Json::parse(), but reports a key that an object has twice, of which Json::parse() would silently keep the last.
// A callback of Json::parse() would also work, but makes it check all earlier elements of an array after each object:
// seconds for a tekken.json.
class UniqueKeys : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  UniqueKeys(Json& result, const std::string& where) : json_sax_dom_parser(result), where_(where) {}
  bool string(std::string& text) {
    stop_poll_();
    return json_sax_dom_parser::string(text);
  }
  bool start_array(std::size_t size) {
    descend();
    return json_sax_dom_parser::start_array(size);
  }
  bool end_array() {
    keys_.pop_back();
    return json_sax_dom_parser::end_array();
  }
  bool start_object(std::size_t size) {
    descend();
    return json_sax_dom_parser::start_object(size);
  }
  bool end_object() {
    keys_.pop_back();
    return json_sax_dom_parser::end_object();
  }
  bool key(std::string& name) {
    stop_poll_();
    if (!keys_.back().insert(name).second) throw FormatError(where_, "key \"{}\" occurs twice in one object", name);
    return json_sax_dom_parser::key(name);
  }

 private:
  void descend() {
    stop_poll_();
    if (keys_.size() == kMaxDepth) throw FormatError(where_, "JSON is nested deeper than {} levels", kMaxDepth);
    keys_.emplace_back();
  }

  const std::string& where_;
  StopPoll stop_poll_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects and, none, arrays
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  try {
    Json result;
    UniqueKeys parser(result, where);
    Json::sax_parse(text, &parser);
    return result;
  } catch (const Json::parse_error& error) {
    const std::size_t end = std::min<std::size_t>(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw FormatError(fmt::format("{}:{}", where, line),
                      "not valid JSON at byte {}; is the file complete? Download it again", error.byte);
  } catch (const Json::exception& error) {
    throw FormatError(where, std::string("not valid JSON: ") + error.what());
  }
}

Json parse_json_file(const std::filesystem::path& path) {
  return parse_json(storage::read_model_file(path), path.string());
}

void JsonPlace::expected(const char* what) const {
  fail(fmt::format("expected {}, found {}", what, value_->type_name()));
}

JsonPlace JsonPlace::at(const std::string& key) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) fail(fmt::format("\"{}\" is missing", key));
  return {*found, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key)};
}

std::optional<JsonPlace> JsonPlace::find(const std::string& key) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? std::nullopt : std::optional(at(key));
}

JsonPlace JsonPlace::section(const std::string& key) const {
  static const Json null;
  const auto found = find(key);
  return found ? *found : JsonPlace(null, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key));
}

std::vector<JsonPlace> JsonPlace::elements() const {
  if (!value_->is_array()) expected("an array");
  std::vector<JsonPlace> places;
  places.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    places.push_back(element(i));
  }
  return places;
}

const std::string& JsonPlace::string() const {
  if (!value_->is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

std::int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) expected("an integer");
  if (value_->is_number_unsigned() &&
      value_->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    expected("an integer below 2^63");
  }
  return value_->get<std::int64_t>();
}

std::int32_t JsonPlace::id() const {
  const std::int64_t value = integer();
  // Ids index tables, so a huge one must not cost gigabytes.
  if (value < 0 || value >= (1 << 24)) fail(fmt::format("token id {} is not in [0, 2^24)", value));
  return static_cast<std::int32_t>(value);
}

bool JsonPlace::boolean_or(const std::string& key, bool fallback) const {
  const auto member = find(key);
  return member ? member->boolean() : fallback;
}

std::string JsonPlace::string_or(const std::string& key, const std::string& fallback) const {
  const auto member = find(key);
  return member ? member->string() : fallback;
}

void JsonPlace::allow_only(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) expected("an object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end() && !value.is_null()) {
      fail(fmt::format("\"{}\" is not supported by lora-train's tokenizer", key));
    }
  }
}

}  // namespace lora_train::tokenizer
