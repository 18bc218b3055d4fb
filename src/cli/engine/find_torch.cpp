#include "find_torch.h"

#include <cstdlib>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/text.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNeededSeries = "2.11.";
constexpr const char* kWhatToDo =
    "lora-train needs LibTorch 2.11 from the torch wheel: pip install torch==2.11.0, then run lora-train with that "
    "Python's environment active, or set LORA_TRAIN_TORCH to its torch folder.";

// The value of `name = '...'` or `name: type = '...'` at the start of a line; empty for None.
std::string python_string(const std::string& source, const std::string& name) {
  for (std::size_t begin = 0; begin < source.size();) {
    const std::size_t end = std::min(source.find('\n', begin), source.size());
    const std::string line = source.substr(begin, end - begin);
    begin = end + 1;
    const char next = line.size() > name.size() ? line[name.size()] : '\0';
    if (!line.starts_with(name) || (next != ' ' && next != ':' && next != '=')) continue;
    const std::size_t open = line.find_first_of("'\"", line.find('='));
    if (open == std::string::npos) continue;
    return line.substr(open + 1, line.find(line[open], open + 1) - open - 1);
  }
  return {};
}

// Takes a folder if it is of the needed series; else notes what it is.
bool takes(const fs::path& folder, const std::string& found_by, std::vector<std::string>& seen,
           TorchInstallation& torch) {
  try {
    torch = read_torch_folder(folder, found_by);
  } catch (const ConfigError& error) {
    seen.emplace_back(error.what());
    return false;
  }
  if (torch.version.starts_with(kNeededSeries)) return true;
  seen.push_back(found_by + ": torch " + torch.version + " in " + torch.folder.string());
  return false;
}

}  // namespace

TorchInstallation read_torch_folder(fs::path folder, const std::string& found_by) {
  std::error_code error;
  if (folder.filename().empty()) folder = folder.parent_path();
  if (!fs::exists(folder / "version.py", error) && folder.filename() == "lib") folder = folder.parent_path();
  if (!fs::exists(folder / "version.py", error) || !fs::exists(folder / "lib" / "libtorch_cpu.so", error)) {
    throw ConfigError(found_by, "no torch wheel in " + folder.string() + " (no version.py, or no lib/libtorch_cpu.so)");
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
    throw ConfigError("LibTorch", join(seen, "; ") + ". " + kWhatToDo);
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
  throw ConfigError("LibTorch", "not found (" + join(seen, "; ") + "). " + kWhatToDo);
}

}  // namespace lora_train::cli
