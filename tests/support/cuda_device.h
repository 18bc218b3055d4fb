// The GPU of a test: loads and starts the CUDA half of the program where there is one.
#pragma once

#include <dlfcn.h>

#include <exception>
#include <string>

#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::testing_support {

/// Why there is no GPU to test on; empty: there is one, and the library is started on it. To be asked before torch is asked
/// whether it has CUDA.
inline const std::string& why_no_cuda() {
  static const std::string reason = []() -> std::string {
    if (::dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) return "no NVIDIA driver here";
    try {
      const kernels::CudaFolders folders = kernels::default_cuda_folders();
      if (kernels::load_cuda_library(folders.library, folders.torch).num_devices() == 0) return "no CUDA device here";
      kernels::start_cuda({});
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }();
  return reason;
}

}  // namespace lora_train::testing_support
