// Reads the JSON files of a checkpoint. Private, because it includes nlohmann/json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace lora_train::checkpoint {

/// Throws json::exception, and FormatError (where) for values nested deeper than those of a checkpoint: printing them is
/// recursive.
nlohmann::json parse_json(const std::string& text, const std::string& where);

/// An integer from 0 to 2^63 - 1; json's get<>() would accept 1e300 too. Throws json::exception if the key is missing,
/// FormatError for any other value.
std::int64_t whole_number(const nlohmann::json& object, const char* key, const std::string& where);

}  // namespace lora_train::checkpoint
