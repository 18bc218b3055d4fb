// A function of a shared library that is loaded where the machine has it.
#pragma once

#include <dlfcn.h>

namespace lora_train {

/// Sets `function`, a pointer of the right type, to the symbol of an open library. False: it has none of that name.
template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace lora_train
