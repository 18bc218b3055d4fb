#include "lora_train/kernels/dispatch/cuda_library.h"

#include <c10/core/Allocator.h>
#include <dlfcn.h>

#include "lora_train/base/error.h"
#include "lora_train/base/library.h"
#include "lora_train_build_id.h"

namespace lora_train::kernels {
namespace {

namespace fs = std::filesystem;

const CudaLibrary* loaded_library = nullptr;
CudaSettings started_settings;

SharedLibrary open_library(const fs::path& file, int flags, const std::string& what_to_do) {
  std::error_code error;
  if (!fs::exists(file, error))
    throw DeviceError(file.string(), "is missing, but device: cuda needs it. " + what_to_do);
  const SharedLibrary library(file, flags);
  if (library.problem().empty()) return library;
  throw DeviceError(file.string(), "cannot be loaded: {}. {}", library.problem(), what_to_do);
}

/// Folder of the file that `address` was loaded from.
fs::path folder_of(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  return fs::weakly_canonical(info.dli_fname, error).parent_path();
}

}  // namespace

CudaFolders default_cuda_folders() {
  fs::path library = folder_of(reinterpret_cast<const void*>(&default_cuda_folders));
  std::error_code error;
  if (!fs::exists(library / "liblora_train_cuda.so", error)) library /= "lib";
  // A function in libc10.so, which is in torch/lib.
  return {library, folder_of(reinterpret_cast<const void*>(&c10::GetAllocator)).parent_path()};
}

const CudaLibrary& load_cuda_library(const fs::path& folder, const fs::path& torch_folder) {
  if (loaded_library != nullptr) return *loaded_library;
  const std::string reinstall =
      "Install the wheel with CUDA: pip install --force-reinstall torch==2.11.0, or choose device: cpu.";
  // By full path: their own RPATH then finds the NVIDIA libraries of the same environment. Global, for the next
  // library.
  for (const char* name : {"libc10_cuda.so", "libtorch_cuda.so"}) {
    open_library(torch_folder / "lib" / name, RTLD_NOW | RTLD_GLOBAL, reinstall);
  }
  const fs::path file = folder / "liblora_train_cuda.so";
  const SharedLibrary library =
      open_library(file, RTLD_NOW | RTLD_LOCAL,
                   "Use a build of lora-train with CUDA, and copy its whole folder; or choose device: "
                   "cpu.");
  const std::string mismatch = library.build_mismatch(LORA_TRAIN_BUILD_ID);
  if (!mismatch.empty()) throw DeviceError(file.string(), mismatch);
  const CudaLibrary* (*const entry)() = library.find_if_there("lora_train_cuda");
  if (entry == nullptr) throw DeviceError(file.string(), "has no lora_train_cuda(). Copy lib/ of the same build.");
  loaded_library = entry();
  return *loaded_library;
}

const CudaLibrary* cuda_library() { return loaded_library; }

void start_cuda(const CudaSettings& settings) {
  if (loaded_library == nullptr) throw DeviceError("start_cuda", "liblora_train_cuda.so is not loaded");
  loaded_library->start(settings);
  started_settings = settings;
}

const CudaSettings& cuda_settings() { return started_settings; }

int cuda_compute_capability() {
  static const int capability = [] {
    if (loaded_library == nullptr) throw DeviceError("cuda_compute_capability", "liblora_train_cuda.so is not loaded");
    const CudaDevice device = loaded_library->device(started_settings.device);
    return 10 * device.major + device.minor;
  }();
  return capability;
}

}  // namespace lora_train::kernels
