// Shared libraries that are opened at run time. Program, engine and CUDA library fit together only if they were built
// from the same headers.
#pragma once

#include <dlfcn.h>

#include <string>
#include <string_view>

/// Exported by each of our libraries that is loaded at run time: its LORA_TRAIN_BUILD_ID (cmake/BuildId.cmake).
extern "C" const char* lora_train_build_id();

namespace lora_train {

/// An address in a library; converts to a pointer to any function.
struct Symbol {
  void* address = nullptr;
  template <class Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(address);
  }
};

/// A library that stays open. A struct of its functions begins with it, and each member finds itself:
/// `int (*init)(unsigned) = library.find("cuInit");`. Without a library, all are null.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  explicit SharedLibrary(const std::string& file, int flags = RTLD_NOW | RTLD_LOCAL);

  /// Null, and a problem, if the library has no such function.
  Symbol find(const char* name);
  Symbol find_if_there(const char* name) const;

  /// Why it cannot be opened, else the first function that it lacks; empty if all is well.
  const std::string& problem() const { return problem_; }

  /// The end of a message that says why code of build `own_id` cannot use it; empty if it can.
  std::string build_mismatch(std::string_view own_id) const;

 private:
  std::string file_, problem_;
  void* handle_ = nullptr;
};

}  // namespace lora_train
