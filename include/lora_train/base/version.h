// Version and commit of this build.
#pragma once

#include <string>

namespace lora_train {

/// "0.1.0", from CMakeLists.txt.
std::string version();

/// Short hash of the commit it was built from, followed by "+" if files differed; "unknown" outside a repository.
std::string commit();

}  // namespace lora_train
