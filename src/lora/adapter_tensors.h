// Private to the module: the tensor half of save_adapter.
#pragma once

#include "lora_train/lora/adapter_file.h"

namespace lora_train::lora {

void save_adapter_tensors(const std::filesystem::path& folder, const model::Parameters& parameters, SaveDtype dtype);

}  // namespace lora_train::lora
