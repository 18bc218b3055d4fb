// A value in a JSON file together with its place, so that every error names the file and the path in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::tokenizer {

using Json = nlohmann::json;

/// Parses a file; FormatError (file:line) on malformed JSON, IoError if it cannot be read.
Json parse_json_file(const std::filesystem::path& path);
/// As above, from text that `where` names. Refuses nesting deeper than 256.
Json parse_json(std::string_view text, const std::string& where);

class JsonPlace {
 public:
  JsonPlace(const Json& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  /// "folder/tokenizer.json: model.vocab"
  std::string where() const { return path_.empty() ? file_ : file_ + ": " + path_; }
  [[noreturn]] void fail(const std::string& message) const { throw FormatError(where(), message); }

  /// A member; fails if this is not an object or lacks it.
  JsonPlace at(const std::string& key) const;
  /// A member, if it exists and is not null.
  std::optional<JsonPlace> find(const std::string& key) const;
  /// As above, but a place that is null if it does not exist.
  JsonPlace section(const std::string& key) const;
  /// The elements; fails if this is not an array.
  std::vector<JsonPlace> elements() const;
  /// value()[index], which must exist.
  JsonPlace element(std::size_t index) const {
    return {(*value_)[index], file_, path_ + "[" + std::to_string(index) + "]"};
  }

  const std::string& string() const;
  /// What a table of names has for this string; fails with the names that it knows.
  template <typename Value, std::size_t N>
  Value one_of(const std::pair<const char*, Value> (&known)[N]) const {
    std::string names;
    for (const auto& [name, value] : known) {
      if (string() == name) return value;
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    fail("\"" + string() + "\" is not supported; expected one of " + names);
  }
  bool boolean() const;
  /// A token id in [0, 2^24).
  std::int32_t id() const;
  std::int64_t integer() const;

  bool boolean_or(const std::string& key, bool fallback) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;

  /// A component's "type".
  const std::string& type() const { return at("type").string(); }
  /// Fails on members other than these: unknown settings are never ignored.
  void allow_only(std::initializer_list<std::string_view> keys) const;

 private:
  [[noreturn]] void expected(const char* what) const;
  const Json* value_;
  std::string file_, path_;
};

}  // namespace lora_train::tokenizer
