#include "engine_loader.h"

#include <cstdlib>
#include <sstream>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/library.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/text.h"
#include "lora_train_build_id.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNeededSeries = "2.11.";
constexpr const char* kWhatToDo =
    "lora-train needs LibTorch 2.11 from the torch wheel: pip install torch==2.11.0, then run lora-train with that "
    "Python's environment active, or set LORA_TRAIN_TORCH to its torch folder.";

// The value of `name = '...'` or `name: type = '...'` at the start of a line; empty for None.
std::string python_string(const std::string& source, const std::string& name) {
  std::istringstream lines(source);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (!line.starts_with(name) || equals == std::string::npos) continue;
    const std::string between = trimmed(line.substr(name.size(), equals - name.size()));
    const std::string value = trimmed(line.substr(equals + 1));
    if ((between.empty() || between.starts_with(':')) && value.find_first_of("'\"") == 0)
      return value.substr(1, value.find_first_of("'\"", 1) - 1);
  }
  return "";
}

// Takes a folder if its torch is of the required series; otherwise notes its version.
bool takes(const fs::path& folder, const std::string& found_by, std::vector<std::string>& seen,
           TorchInstallation& torch) {
  try {
    torch = read_torch_folder(folder, found_by);
  } catch (const ConfigError& error) {
    seen.emplace_back(error.what());
    return false;
  }
  if (torch.version.starts_with(kNeededSeries)) return true;
  seen.push_back(fmt::format("{}: torch {} in {}", found_by, torch.version, torch.folder.string()));
  return false;
}

SharedLibrary open_library(const fs::path& file, int flags, const std::string& what_to_do) {
  const SharedLibrary library(file, flags);
  if (library.problem().empty()) return library;
  if (library.problem().ends_with(
          "failed to map segment from shared object")) {  // other causes than memory add more text
    throw DeviceError(file.string(), "cannot be loaded: out of memory on the host. Free some, or raise ulimit -v");
  }
  throw ConfigError(file.string(), "cannot be loaded: {}. {}", library.problem(), what_to_do);
}

// Spins of an OpenMP thread before it sleeps: tenths of a millisecond. Fewer cost speed on idle cores; libgomp's own
// limit of 300000 lets a thread spin for milliseconds on a core that its partner waits for (docs/performance.md).
constexpr const char* kOpenMpSpins = "30000";

// libgomp comes with LibTorch and reads its environment once, when loaded.
void limit_spinning_of_openmp() {
  const bool is_chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (!is_chosen) ::setenv("GOMP_SPINCOUNT", kOpenMpSpins, 0);
}

const EngineApi* open_engine() {
  const fs::path file = program_folder() / "lib" / "liblora_train_engine.so";
  if (!fs::exists(file)) {
    throw ConfigError(file.string(), "the engine is missing; expected lib/ next to lora-train. Copy the whole folder.");
  }
  const TorchInstallation torch = find_torch();
  const std::string reinstall = "Reinstall the wheel: pip install --force-reinstall torch==2.11.0";
  limit_spinning_of_openmp();
  // Uses full paths: their RPATH then finds the NVIDIA libraries of the same environment. Global, for the engine.
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    open_library(torch.folder / "lib" / name, RTLD_NOW | RTLD_GLOBAL, reinstall);
  }
  const SharedLibrary engine =
      open_library(file, RTLD_NOW | RTLD_LOCAL, "It must come from the same build as lora-train.");
  const std::string mismatch = engine.build_mismatch(LORA_TRAIN_BUILD_ID);
  if (!mismatch.empty()) throw ConfigError(file.string(), mismatch);
  const decltype(&lora_train_engine) entry = engine.find_if_there("lora_train_engine");
  if (entry == nullptr) throw ConfigError(file.string(), "not an engine: it has no lora_train_engine().");
  return entry();
}

}  // namespace

TorchInstallation read_torch_folder(fs::path folder, const std::string& found_by) {
  std::error_code error;
  if (folder.filename().empty()) folder = folder.parent_path();
  if (!fs::exists(folder / "version.py", error) && folder.filename() == "lib") folder = folder.parent_path();
  if (!fs::exists(folder / "version.py", error) || !fs::exists(folder / "lib" / "libtorch_cpu.so", error)) {
    throw ConfigError(found_by, "no torch wheel in {} (no version.py, or no lib/libtorch_cpu.so)", folder.string());
  }
  const std::string source = read_file(folder / "version.py");
  return {folder, python_string(source, "__version__"), python_string(source, "cuda"), found_by};
}

TorchInstallation find_torch() {
  TorchInstallation torch;
  std::vector<std::string> seen;
  const char* const named = std::getenv("LORA_TRAIN_TORCH");
  if (named != nullptr && *named != '\0') {
    if (takes(named, "$LORA_TRAIN_TORCH", seen, torch)) return torch;
    throw ConfigError("LibTorch", "{}. {}", join(seen, "; "), kWhatToDo);
  }
  const fs::path built_with = package_of_build("torch");
  if (!built_with.empty() && takes(built_with, "lib/torch_path", seen, torch)) return torch;
  for (const auto& python : python_programs()) {
    const fs::path folder = find_python_package(python, "torch");
    if (folder.empty()) {
      seen.push_back(python + ": has no torch");
    } else if (takes(folder, python, seen, torch)) {
      return torch;
    }
  }
  throw ConfigError("LibTorch", "not found ({}). {}", join(seen, "; "), kWhatToDo);
}

const EngineApi& load_engine() {
  static const EngineApi* const api = open_engine();
  return *api;
}

}  // namespace lora_train::cli
