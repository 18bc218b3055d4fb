#include "config_reader.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::model {

constexpr std::int64_t kMaxId = std::int64_t{1} << 31;
ConfigReader::ConfigReader(nlohmann::json object, std::filesystem::path path, std::string prefix)
    : object_(std::move(object)), path_(std::move(path)), prefix_(std::move(prefix)) {}

ConfigReader ConfigReader::with_defaults(std::string_view defaults) const {
  nlohmann::json all = object_;
  const nlohmann::json missing = nlohmann::json::parse(defaults);
  for (const auto& [key, value] : missing.items()) {
    if (!has(key.c_str()) || (value.is_object() && !is_given(key.c_str()))) all[key] = value;
  }
  return {std::move(all), path_, prefix_};
}

void ConfigReader::reject(const std::string& key, const std::string& what) const {
  throw FormatError(fmt::format("{}: {}{}", path_.string(), prefix_, key), what);
}

void ConfigReader::refuse(const char* key, const nlohmann::json& value, const std::string& expected) const {
  const auto text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  const bool is_long = text.size() > 80;
  reject(key, "is {}{}; {} was expected", text.substr(0, is_long ? 77 : 80), is_long ? "..." : "", expected);
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> all;
  for (const auto& item : object_.items()) all.push_back(item.key());
  return all;
}

const nlohmann::json* ConfigReader::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() ? nullptr : &*at;
}

const nlohmann::json& ConfigReader::required(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) reject(key, "the key is missing and has no default; use the file published with the model");
  return *value;
}

std::int64_t ConfigReader::whole(const char* key, const nlohmann::json& value, std::int64_t smallest,
                                 std::int64_t largest) const {
  const bool is_in_range = value.is_number_unsigned()
                               ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(largest)
                               : value.is_number_integer();
  if (!is_in_range || value.get<std::int64_t>() < smallest) {
    refuse(key, value, fmt::format("a whole number from {} to {}", smallest, largest));
  }
  return value.get<std::int64_t>();
}

double ConfigReader::number(const char* key, const nlohmann::json& value) const {
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, value, "a number");
  return value.get<double>();
}

std::int64_t ConfigReader::size(const char* key, std::int64_t largest, std::optional<std::int64_t> fallback) const {
  return fallback && !has(key) ? *fallback : whole(key, required(key), 1, largest);
}

std::optional<std::int64_t> ConfigReader::optional_size(const char* key, std::int64_t largest) const {
  return is_given(key) ? std::optional(size(key, largest)) : std::nullopt;
}

std::int64_t ConfigReader::count(const char* key, std::int64_t fallback) const {
  return has(key) ? whole(key, *find(key), 0, std::int64_t{1} << 40) : fallback;
}

std::optional<std::int64_t> ConfigReader::optional_id(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  // Old Llama files use -1 for "none".
  const auto id = whole(key, *find(key), -1, kMaxId);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::vector<std::int64_t> ConfigReader::ids(const char* key) const {
  if (!is_given(key)) return {};
  if (!find(key)->is_array()) return {whole(key, *find(key), 0, kMaxId)};
  std::vector<std::int64_t> all;
  for (const auto& value : *find(key)) all.push_back(whole(key, value, 0, kMaxId));
  return all;
}

double ConfigReader::positive(const char* key, std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const double result = number(key, required(key));
  if (result <= 0) refuse(key, *find(key), "a number above zero");
  return result;
}

std::optional<double> ConfigReader::optional_number(const char* key) const {
  return is_given(key) ? std::optional(number(key, *find(key))) : std::nullopt;
}

bool ConfigReader::boolean(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!find(key)->is_boolean()) refuse(key, *find(key), "true or false");
  return find(key)->get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!find(key)->is_string()) refuse(key, *find(key), "a string");
  return find(key)->get<std::string>();
}

std::string ConfigReader::one_of(const char* key, const std::vector<std::string>& known, const std::string& fallback,
                                 const std::string& remedy) const {
  const std::string found = is_given(key) ? text(key, "") : fallback;
  if (std::ranges::count(known, found) > 0) return found;
  reject(key, "\"{}\" is not supported; expected {}{}", found.substr(0, 80), join(known, " or "), remedy);
}

std::optional<std::vector<std::string>> ConfigReader::optional_texts(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  const auto& value = *find(key);
  const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_text)) refuse(key, value, "a list of strings");
  return value.get<std::vector<std::string>>();
}

std::vector<double> ConfigReader::numbers(const char* key) const {
  if (!required(key).is_array()) refuse(key, *find(key), "a list of numbers");
  std::vector<double> all;
  for (const auto& item : *find(key)) all.push_back(number(key, item));
  return all;
}

std::optional<ConfigReader> ConfigReader::optional_object(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  const auto& value = *find(key);
  if (!value.is_object()) refuse(key, value, "an object");
  if (value.empty()) return std::nullopt;
  return ConfigReader(value, path_, fmt::format("{}{}.", prefix_, key));
}

}  // namespace lora_train::model
