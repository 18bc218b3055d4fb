#include "lora_train/base/library.h"

#include <dlfcn.h>

namespace lora_train {

std::string build_mismatch(void* library, std::string_view own_id) {
  const auto id_of_library = reinterpret_cast<decltype(&lora_train_build_id)>(::dlsym(library, "lora_train_build_id"));
  const std::string id = id_of_library != nullptr ? id_of_library() : "";
  if (id == own_id) return "";
  return "is from another build: its id is " + (id.empty() ? "unknown" : id) + ", expected " + std::string(own_id) +
         ". Copy lora-train and lib/ from the same build.";
}

std::string loading_failure() {
  const char* const reason = ::dlerror();
  return std::string("cannot be loaded: ") + (reason != nullptr ? reason : "unknown reason");
}

}  // namespace lora_train
