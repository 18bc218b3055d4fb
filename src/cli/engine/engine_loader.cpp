#include "engine_loader.h"

#include <dlfcn.h>

#include <cstdlib>

#include "lora_train/base/error.h"
#include "lora_train/base/library.h"
#include "lora_train/base/python_packages.h"
#include "lora_train_build_id.h"  // made by cmake/write_build_id.cmake at each build

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

void* open_library(const fs::path& file, int flags, const std::string& what_to_do) {
  void* const handle = ::dlopen(file.c_str(), flags);
  if (handle != nullptr) return handle;
  const std::string failure = loading_failure();
  if (failure.ends_with("failed to map segment from shared object")) {  // other causes than memory follow it
    throw DeviceError(file.string(), "cannot be loaded: out of memory on the host. Free some, or raise ulimit -v");
  }
  throw ConfigError(file.string(), failure + ". " + what_to_do);
}

// Spins of an OpenMP thread before it sleeps: tenths of a millisecond. Fewer cost speed on idle cores; libgomp's own limit of 300000
// lets a thread spin for milliseconds on a core that its partner waits for (docs/performance.md).
constexpr const char* kOpenMpSpins = "30000";

// libgomp comes with LibTorch and reads its environment once, as it is loaded.
void limit_spinning_of_openmp() {
  const bool is_chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (!is_chosen) ::setenv("GOMP_SPINCOUNT", kOpenMpSpins, 0);
}

const EngineApi* open_engine() {
  const fs::path file = program_folder() / "lib" / "liblora_train_engine.so";
  if (!fs::exists(file)) {
    throw ConfigError(file.string(), "the engine is missing; expected lib/ beside lora-train. Copy the whole folder.");
  }
  const TorchInstallation torch = find_torch();
  const std::string reinstall = "Reinstall the wheel: pip install --force-reinstall torch==2.11.0";
  limit_spinning_of_openmp();
  // By full path: their own RPATH then finds the NVIDIA libraries of the same environment. Global, for the engine.
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    open_library(torch.folder / "lib" / name, RTLD_NOW | RTLD_GLOBAL, reinstall);
  }
  void* const engine = open_library(file, RTLD_NOW | RTLD_LOCAL, "It must come from the same build as lora-train.");
  const std::string mismatch = build_mismatch(engine, LORA_TRAIN_BUILD_ID);
  if (!mismatch.empty()) throw ConfigError(file.string(), mismatch);
  const auto entry = reinterpret_cast<decltype(&lora_train_engine)>(::dlsym(engine, "lora_train_engine"));
  if (entry == nullptr) throw ConfigError(file.string(), "not an engine: it has no lora_train_engine().");
  return entry();
}

}  // namespace

const EngineApi& load_engine() {
  static const EngineApi* const api = open_engine();
  return *api;
}

}  // namespace lora_train::cli
