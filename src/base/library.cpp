#include "lora_train/base/library.h"

namespace lora_train {

SharedLibrary::SharedLibrary(const std::string& file, int flags) : file_(file), handle_(::dlopen(file.c_str(), flags)) {
  if (handle_ != nullptr) return;
  const char* const reason = ::dlerror();
  problem_ = reason != nullptr ? reason : file + ": cannot be opened";
}

Symbol SharedLibrary::find(const char* name) {
  const Symbol found = find_if_there(name);
  if (found.address == nullptr && problem_.empty()) problem_ = file_ + ": has no function " + name;
  return found;
}

Symbol SharedLibrary::find_if_there(const char* name) const {
  return {handle_ == nullptr ? nullptr : ::dlsym(handle_, name)};
}

std::string SharedLibrary::build_mismatch(std::string_view own_id) const {
  const decltype(&lora_train_build_id) id_of_library = find_if_there("lora_train_build_id");
  const std::string id = id_of_library != nullptr ? id_of_library() : "";
  if (id == own_id) return "";
  return "is from another build: its id is " + (id.empty() ? "unknown" : id) + ", expected " + std::string(own_id) +
         ". Copy lora-train and lib/ from the same build.";
}

}  // namespace lora_train
