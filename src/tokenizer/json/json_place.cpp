#include "json_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "lora_train/base/hash.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::size_t kMaxDepth = 256;

// Counts repeated elements of model.merges. Hugging Face keeps the last of equal merges, so some are accepted; but each
// takes ten times its bytes in memory, and a file could be full of them.
class RepeatedMerges {
 public:
  explicit RepeatedMerges(const std::string& where) : where_(where) {}
  void start_array(bool is_merges) {
    if (depth_ > 0 || is_merges) ++depth_;
  }
  void end_array() {
    if (depth_ > 0 && --depth_ == 1) end_element();
  }
  void value(std::string_view text) {
    if (depth_ == 0) return;
    hash_ = hash64(text, hash_);
    if (depth_ == 1) end_element();
  }

 private:
  static constexpr std::size_t kAccepted = 1000;

  void end_element() {
    const bool is_new = seen_.insert(std::exchange(hash_, 0)).second;
    if (!is_new && ++num_repeats_ > std::max(kAccepted, seen_.size())) {
      throw FormatError(fmt::format("{}: model.merges[{}]", where_, seen_.size() + num_repeats_ - 1),
                        "repeats an earlier merge, as do {} others: repeats outnumber distinct merges. Download the "
                        "file again",
                        num_repeats_ - 1);
    }
  }

  const std::string& where_;
  int depth_ = 0;  // depth of arrays, from model.merges on
  std::uint64_t hash_ = 0;
  std::size_t num_repeats_ = 0;
  std::unordered_set<std::uint64_t> seen_;
};

// Like Json::parse(), but reports a key that an object has twice, of which Json::parse() would silently keep the last.
// A callback of Json::parse() would also work, but makes it check all earlier elements of an array after each object:
// seconds for a tekken.json.
class UniqueKeys : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  UniqueKeys(Json& result, const std::string& where) : json_sax_dom_parser(result), where_(where), merges_(where) {}
  bool null() {
    merges_.value({});
    return json_sax_dom_parser::null();
  }
  bool boolean(bool value) {
    merges_.value({});
    return json_sax_dom_parser::boolean(value);
  }
  bool number_integer(std::int64_t value) {
    merges_.value({});
    return json_sax_dom_parser::number_integer(value);
  }
  bool number_unsigned(std::uint64_t value) {
    merges_.value({});
    return json_sax_dom_parser::number_unsigned(value);
  }
  bool number_float(double value, const std::string& text) {
    merges_.value({});
    return json_sax_dom_parser::number_float(value, text);
  }
  bool string(std::string& text) {
    stop_poll_();
    merges_.value(text);
    return json_sax_dom_parser::string(text);
  }
  bool start_array(std::size_t size) {
    merges_.start_array(keys_.size() == 2 && keys_[0].last == "model" && keys_[1].last == "merges");
    descend();
    return json_sax_dom_parser::start_array(size);
  }
  bool end_array() {
    merges_.end_array();
    keys_.pop_back();
    return json_sax_dom_parser::end_array();
  }
  bool start_object(std::size_t size) {
    descend();
    return json_sax_dom_parser::start_object(size);
  }
  bool end_object() {
    keys_.pop_back();
    merges_.value({});
    return json_sax_dom_parser::end_object();
  }
  bool key(std::string& name) {
    stop_poll_();
    keys_.back().last = name;
    if (!keys_.back().all.insert(name).second) {
      throw FormatError(where_, "key \"{}\" occurs twice in one object", name);
    }
    return json_sax_dom_parser::key(name);
  }

 private:
  struct Keys {
    std::unordered_set<std::string> all;
    std::string last;
  };

  void descend() {
    stop_poll_();
    if (keys_.size() == kMaxDepth) throw FormatError(where_, "JSON is nested deeper than {} levels", kMaxDepth);
    keys_.emplace_back();
  }

  const std::string& where_;
  StopPoll stop_poll_;
  std::vector<Keys> keys_;  // of the open objects and, none, arrays
  RepeatedMerges merges_;
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
