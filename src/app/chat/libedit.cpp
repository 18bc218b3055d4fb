#include "libedit.h"

#include <dlfcn.h>

namespace lora_train::app::libedit {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Api& api) {
  return find(library, "el_init", api.init) && find(library, "el_end", api.end) && find(library, "el_gets", api.gets) &&
         find(library, "el_set", api.set) && find(library, "el_get", api.get) &&
         find(library, "el_source", api.source) && find(library, "el_resize", api.resize) &&
         find(library, "el_line", api.line) && find(library, "el_insertstr", api.insert) &&
         find(library, "history_init", api.history_init) && find(library, "history_end", api.history_end) &&
         find(library, "history", api.history);
}

}  // namespace

const Api* load() {
  static Api api{};
  for (const char* name : {"libedit.so.2", "libedit.so.0"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr && find_all(library, api)) return &api;
  }
  return nullptr;
}

}  // namespace lora_train::app::libedit
