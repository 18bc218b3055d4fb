// Program, engine and CUDA library belong together only where all of their headers are the same.
#pragma once

#include <string>
#include <string_view>

/// Every library of ours that is loaded at run time exports it: its LORA_TRAIN_BUILD_ID (cmake/BuildId.cmake).
extern "C" const char* lora_train_build_id();

namespace lora_train {

/// Why `library`, a handle of dlopen(), cannot be used by code of build `own_id`, as an end of a message; empty when it can.
std::string build_mismatch(void* library, std::string_view own_id);

}  // namespace lora_train
