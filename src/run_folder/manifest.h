// manifest.json of a checkpoint: the files that must be in the folder. It is written last and contains its own hash.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lora_train/base/file.h"
#include "lora_train/run_folder/checkpoint.h"

namespace lora_train::run_folder {

struct Manifest {
  std::int64_t step = 0, world_size = 1;
  Fingerprints fingerprints;
  std::map<std::string, FileHash> files;
};

std::string to_json(const Manifest& manifest);

/// Throws FormatError unless to_json() of the result gives `text` again, byte for byte.
Manifest parse_manifest(const std::string& text, const std::string& where);

// Reading JSON files of a checkpoint.

/// Throws json::exception; FormatError (where) for values nested deeper than a checkpoint's, because printing recurses.
nlohmann::json parse_json(const std::string& text, const std::string& where);

/// A whole number of up to 63 bits; json's get<>() accepts 1e300 too. Throws json::exception if it is missing, else
/// FormatError.
std::int64_t whole_number(const nlohmann::json& object, const char* key, const std::string& where);

}  // namespace lora_train::run_folder
