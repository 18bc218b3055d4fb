// What this build is.
#pragma once

#include <string>

namespace lora_train {

/// "0.1.0", of CMakeLists.txt.
std::string version();

/// Short hash of the commit it was built from, "+" after it when files differed; "unknown" outside a repository.
std::string commit();

}  // namespace lora_train
