#include "config_reader.h"

#include <cmath>

#include "family.h"
#include "lora_train/base/error.h"

namespace lora_train::model {
namespace {

std::string shown(const nlohmann::json& value) {
  const auto text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

}  // namespace

ConfigReader::ConfigReader(nlohmann::json object, std::filesystem::path path, std::string prefix)
    : object_(std::move(object)), path_(std::move(path)), prefix_(std::move(prefix)) {}

void ConfigReader::reject(const std::string& key, const std::string& what) const {
  throw FormatError(fmt::format("{}: {}{}", path_.string(), prefix_, key), what);
}

void ConfigReader::missing(const char* key) const {
  reject(key, "the key is missing and has no default; use the config.json published with the model");
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

std::int64_t ConfigReader::whole(const char* key, const nlohmann::json& value, std::int64_t smallest,
                                 std::int64_t largest) const {
  const std::string range = fmt::format("a whole number from {} to {}", smallest, largest);
  if (!value.is_number_integer()) reject(key, fmt::format("is {}; {} was expected", shown(value), range));
  const bool is_too_large =
      value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest);
  if (is_too_large || value.get<std::int64_t>() < smallest)
    reject(key, fmt::format("is {}; {} was expected", shown(value), range));
  return value.get<std::int64_t>();
}

double ConfigReader::number(const char* key, const nlohmann::json& value) const {
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    reject(key, fmt::format("is {}; a number was expected", shown(value)));
  return value.get<double>();
}

std::int64_t ConfigReader::size(const char* key, std::int64_t largest) const {
  const auto* value = find(key);
  if (value == nullptr) missing(key);
  return whole(key, *value, 1, largest);
}

std::int64_t ConfigReader::size(const char* key, std::int64_t largest, std::int64_t fallback) const {
  return has(key) ? size(key, largest) : fallback;
}

std::optional<std::int64_t> ConfigReader::optional_size(const char* key, std::int64_t largest) const {
  if (!is_given(key)) return std::nullopt;
  return size(key, largest);
}

std::int64_t ConfigReader::count(const char* key, std::int64_t fallback) const {
  const auto* value = find(key);
  return value == nullptr ? fallback : whole(key, *value, 0, std::int64_t{1} << 40);
}

std::optional<std::int64_t> ConfigReader::optional_id(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  // Old Llama files use -1 for "none".
  const auto id = whole(key, *find(key), -1, std::int64_t{1} << 31);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::vector<std::int64_t> ConfigReader::ids(const char* key) const {
  if (!is_given(key)) return {};
  if (!find(key)->is_array()) return {whole(key, *find(key), 0, std::int64_t{1} << 31)};
  std::vector<std::int64_t> all;
  for (const auto& value : *find(key)) all.push_back(whole(key, value, 0, std::int64_t{1} << 31));
  return all;
}

double ConfigReader::positive(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) missing(key);
  const double result = number(key, *value);
  if (result <= 0) reject(key, fmt::format("is {}; a number above zero was expected", shown(*value)));
  return result;
}

double ConfigReader::positive(const char* key, double fallback) const { return has(key) ? positive(key) : fallback; }

std::optional<double> ConfigReader::optional_number(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  return number(key, *find(key));
}

bool ConfigReader::boolean(const char* key, bool fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) reject(key, fmt::format("is {}; true or false was expected", shown(*value)));
  return value->get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) reject(key, fmt::format("is {}; a string was expected", shown(*value)));
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> ConfigReader::optional_texts(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  std::vector<std::string> all;
  const auto& value = *find(key);
  bool is_good = value.is_array();
  for (std::size_t i = 0; is_good && i < value.size(); ++i) {
    is_good = value[i].is_string();
    if (is_good) all.push_back(value[i].get<std::string>());
  }
  if (!is_good) reject(key, fmt::format("is {}; a list of strings was expected", shown(value)));
  return all;
}

std::vector<double> ConfigReader::numbers(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) missing(key);
  if (!value->is_array()) reject(key, fmt::format("is {}; a list of numbers was expected", shown(*value)));
  std::vector<double> all;
  for (const auto& item : *value) all.push_back(number(key, item));
  return all;
}

std::optional<ConfigReader> ConfigReader::optional_object(const char* key) const {
  if (!is_given(key)) return std::nullopt;
  const auto& value = *find(key);
  if (!value.is_object()) reject(key, fmt::format("is {}; an object was expected", shown(value)));
  if (value.empty()) return std::nullopt;
  return ConfigReader(value, path_, fmt::format("{}{}.", prefix_, key));
}

std::optional<std::int64_t> read_window(const ConfigReader& reader) {
  constexpr std::int64_t kDefault = 4096;
  return reader.has("sliding_window") ? reader.optional_size("sliding_window", kLongestWindow) : kDefault;
}

bool read_layer_types(const ConfigReader& reader, std::optional<std::int64_t> window, ModelConfig& config) {
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  const auto types = reader.optional_texts("layer_types");
  if (!types) return false;
  if (types->size() != config.layer_window.size()) {
    reader.reject("layer_types",
                  fmt::format("has {} entries for {} layers (num_hidden_layers)", types->size(), config.num_layers));
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] == "full_attention") continue;
    if ((*types)[i] != "sliding_attention") {
      reader.reject("layer_types",
                    fmt::format("\"{}\" is not supported; expected full_attention or sliding_attention", (*types)[i]));
    }
    if (!window) {
      reader.reject("layer_types", "layer " + std::to_string(i) +
                                       " is sliding_attention, but there is no window: set use_sliding_window to true "
                                       "and sliding_window to a size");
    }
    config.layer_window[i] = *window;
  }
  return true;
}

}  // namespace lora_train::model
