// Shared libraries that are opened at run time. Program, engine and CUDA library fit together only if they were built
// from the same headers.
#pragma once

#include <dlfcn.h>

#include <string>
#include <string_view>

/// Exported by each of our libraries that is loaded at run time: its LORA_TRAIN_BUILD_ID (cmake/BuildId.cmake).
extern "C" const char* lora_train_build_id();

namespace lora_train {

/// The end of a message that says why code of build `own_id` cannot use `library` (a dlopen() handle); empty if it can.
std::string build_mismatch(void* library, std::string_view own_id);

/// "cannot be loaded: ", and why the last dlopen() of this thread failed.
std::string loading_failure();

/// Sets `function`, a pointer of the right type, to the symbol of an open library. False if it has no such symbol.
template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace lora_train
