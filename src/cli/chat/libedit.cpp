#include "libedit.h"

#include <dlfcn.h>

#include "lora_train/base/library.h"

namespace lora_train::cli::libedit {
namespace {

bool find_all(void* library, Api& api) {
  return find_function(library, "el_init", api.init) && find_function(library, "el_end", api.end) &&
         find_function(library, "el_gets", api.gets) && find_function(library, "el_set", api.set) &&
         find_function(library, "el_get", api.get) && find_function(library, "el_source", api.source) &&
         find_function(library, "el_resize", api.resize) && find_function(library, "el_line", api.line) &&
         find_function(library, "el_insertstr", api.insert) &&
         find_function(library, "history_init", api.history_init) &&
         find_function(library, "history_end", api.history_end) && find_function(library, "history", api.history);
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

}  // namespace lora_train::cli::libedit
