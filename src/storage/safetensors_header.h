// The JSON header of a safetensors file, read without building a document tree.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of the header; offsets not checked
  std::map<std::string, std::string> metadata;
};

/// Checks rules 4 and 5 of the format: UTF-8, JSON of the right types, known dtypes, unsigned sizes. Refuses a repeated key in
/// an object; skips unknown keys of a tensor, as the reference does. Throws FormatError, where = `file` or "`file`: tensor".
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file);

}  // namespace lora_train::storage
