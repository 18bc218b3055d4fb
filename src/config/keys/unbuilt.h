// Keys that are promised (contract.md) but not built yet: neither read nor taken for unknown.
#pragma once

#include <string>
#include <vector>

namespace lora_train {

const std::vector<std::string>& unbuilt_key_names();
bool is_unbuilt_key(const std::string& name);

}  // namespace lora_train
