// Private to the module: the files of an adapter folder.
#pragma once

namespace lora_train::lora {

inline constexpr const char* kConfigFile = "adapter_config.json";
inline constexpr const char* kTensorFile = "adapter_model.safetensors";

}  // namespace lora_train::lora
