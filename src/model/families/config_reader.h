// Typed access to the keys of a config.json, with errors that name file and key. Private: sees nlohmann/json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::model {

/// A JSON object and where it stands. Absent and null are told apart: `optional_*` take null for "not given",
/// the others refuse it.
class ConfigReader {
 public:
  /// `path` of the file; `prefix` = "rope_scaling." inside a nested object.
  ConfigReader(nlohmann::json object, std::filesystem::path path, std::string prefix = "");

  bool has(const char* key) const { return object_.contains(key); }
  /// True when the key is there and not null.
  bool is_given(const char* key) const { return has(key) && !object_.at(key).is_null(); }
  const std::filesystem::path& path() const { return path_; }

  /// A whole number from 1 to `largest`. Without a fallback the key must be there.
  std::int64_t size(const char* key, std::int64_t largest) const;
  std::int64_t size(const char* key, std::int64_t largest, std::int64_t fallback) const;
  std::optional<std::int64_t> optional_size(const char* key, std::int64_t largest) const;
  /// A whole number from 0.
  std::int64_t count(const char* key, std::int64_t fallback) const;
  std::optional<std::int64_t> optional_id(const char* key) const;
  /// A number or a list of numbers.
  std::vector<std::int64_t> ids(const char* key) const;
  /// Finite and above zero.
  double positive(const char* key) const;
  double positive(const char* key, double fallback) const;
  std::optional<double> optional_number(const char* key) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::optional<std::vector<std::string>> optional_texts(const char* key) const;
  std::vector<double> numbers(const char* key) const;
  /// Nothing when absent, null or {}.
  std::optional<ConfigReader> optional_object(const char* key) const;

  /// FormatError at "file: prefix.key".
  [[noreturn]] void reject(const std::string& key, const std::string& what) const;

 private:
  const nlohmann::json* find(const char* key) const;
  std::int64_t whole(const char* key, const nlohmann::json& value, std::int64_t smallest, std::int64_t largest) const;
  double number(const char* key, const nlohmann::json& value) const;
  [[noreturn]] void missing(const char* key) const;

  nlohmann::json object_;
  std::filesystem::path path_;
  std::string prefix_;
};

}  // namespace lora_train::model
