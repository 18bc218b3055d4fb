// The name of this machine.
#pragma once

#include <string>

namespace lora_train {

/// The result of gethostname(), or "localhost" if that fails.
std::string host_name();

}  // namespace lora_train
