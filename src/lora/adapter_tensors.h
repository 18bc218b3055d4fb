// adapter_model.safetensors of a PEFT folder, checked against what it should hold. No torch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/model/parameter.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::lora {

/// Throws FormatError for a file or tensor that is missing, a tensor of another shape, not of F32, F16 or BF16, or not
/// expected; the base model that adapter_config.json names is part of the message.
storage::SafetensorsFile open_adapter_tensors(const std::filesystem::path& folder,
                                              const std::vector<model::Parameter>& expected);

/// The file alone, of any tensors. Throws FormatError when it is missing or no safetensors file.
storage::SafetensorsFile open_adapter_file(const std::filesystem::path& folder);

/// FormatError for NaN or infinity in a tensor of this file.
[[noreturn]] void refuse_non_finite(const storage::SafetensorsFile& file, const std::string& name);

}  // namespace lora_train::lora
