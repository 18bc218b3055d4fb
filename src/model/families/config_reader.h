// Typed access to the keys of a config.json, with errors that name file and key. Private, because it includes
// nlohmann/json.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lora_train::model {

/// A JSON object and its location. Tells a missing key from null: `optional_*` treat null as "not given", the others
/// refuse it.
class ConfigReader {
 public:
  /// `path`: the file; `prefix`: "rope_scaling." inside that object.
  ConfigReader(nlohmann::json object, std::filesystem::path path, std::string prefix = "");
  /// The same with the keys of `defaults` (a JSON object) where they are missing, objects where they are null too.
  ConfigReader with_defaults(std::string_view defaults) const;

  bool has(const char* key) const { return object_.contains(key); }
  /// True if the key is present and not null.
  bool is_given(const char* key) const { return has(key) && !object_.at(key).is_null(); }
  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> keys() const;

  /// A whole number from 1 to `largest`. Without a fallback, the key is required.
  std::int64_t size(const char* key, std::int64_t largest, std::optional<std::int64_t> fallback = {}) const;
  std::optional<std::int64_t> optional_size(const char* key, std::int64_t largest) const;
  /// A whole number, 0 or more.
  std::int64_t count(const char* key, std::int64_t fallback) const;
  std::optional<std::int64_t> optional_id(const char* key) const;
  /// A number or a list of numbers.
  std::vector<std::int64_t> ids(const char* key) const;
  /// Finite and above zero.
  double positive(const char* key, std::optional<double> fallback = {}) const;
  std::optional<double> optional_number(const char* key) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  /// One of `known`, or `fallback` if the key is missing or null. `remedy` ends the message about another text.
  std::string one_of(const char* key, const std::vector<std::string>& known, const std::string& fallback,
                     const std::string& remedy = "") const;
  std::optional<std::vector<std::string>> optional_texts(const char* key) const;
  std::vector<double> numbers(const char* key) const;
  /// Empty if the key is missing, null or {}.
  std::optional<ConfigReader> optional_object(const char* key) const;

  /// Throws FormatError at "file: prefix.key". With arguments, `what` is the format of fmt::format.
  [[noreturn]] void reject(const std::string& key, const std::string& what) const;
  template <class First, class... Rest>
  [[noreturn]] void reject(const std::string& key, fmt::format_string<First, Rest...> what, First&& first,
                           Rest&&... rest) const {
    reject(key, fmt::format(what, std::forward<First>(first), std::forward<Rest>(rest)...));
  }

 private:
  const nlohmann::json* find(const char* key) const;
  std::int64_t whole(const char* key, const nlohmann::json& value, std::int64_t smallest, std::int64_t largest) const;
  double number(const char* key, const nlohmann::json& value) const;
  const nlohmann::json& required(const char* key) const;
  [[noreturn]] void refuse(const char* key, const nlohmann::json& value, const std::string& expected) const;

  nlohmann::json object_;
  std::filesystem::path path_;
  std::string prefix_;
};

}  // namespace lora_train::model
