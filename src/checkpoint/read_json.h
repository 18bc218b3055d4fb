// Reading the JSON files of a checkpoint. Private: sees nlohmann/json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace lora_train::checkpoint {

/// Throws json::exception; FormatError (where) for values nested deeper than a checkpoint's are, which to print is
/// recursive.
nlohmann::json parse_json(const std::string& text, const std::string& where);

/// A whole number of 63 bits; json's get<>() takes 1e300 too. Throws json::exception when it is not there, else FormatError.
std::int64_t whole_number(const nlohmann::json& object, const char* key, const std::string& where);

}  // namespace lora_train::checkpoint
