#include "find_torch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

extern char** environ;

namespace lora_train::app {
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

// stdout of a program; empty when it fails. Its stderr is dropped.
std::string output_of(const std::vector<std::string>& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int failed = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  char bytes[512];
  for (ssize_t count = 0; failed == 0 && (count = ::read(ends[0], bytes, sizeof bytes)) != 0;) {
    if (count > 0) text.append(bytes, static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  ::close(ends[0]);
  int status = 1;
  if (failed == 0) {
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  return status == 0 ? text : std::string();
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::vector<std::string> pythons() {
  std::vector<std::string> found;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const folder = std::getenv(variable);
    if (folder != nullptr && *folder != '\0') found.push_back((fs::path(folder) / "bin" / "python3").string());
  }
  found.emplace_back("python3");
  return found;
}

fs::path folder_from_build() {
  const fs::path file = program_folder() / "lib" / "torch_path";
  std::error_code error;
  return fs::is_regular_file(file, error) ? fs::path(trimmed(read_file(file))) : fs::path();
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

fs::path program_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

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

fs::path ask_python(const std::string& python) {
  // Without the working directory in the path, where a folder named torch may lie.
  return trimmed(output_of({python, "-c",
                            "import sys, os\n"
                            "sys.path = [p for p in sys.path if p]\n"
                            "import importlib.util\n"
                            "spec = importlib.util.find_spec('torch')\n"
                            "print(os.path.dirname(spec.origin) if spec and spec.origin else '')"}));
}

TorchInstallation find_torch() {
  TorchInstallation torch;
  std::vector<std::string> seen;
  const char* const named = std::getenv("LORA_TRAIN_TORCH");
  if (named != nullptr && *named != '\0') {
    if (takes(named, "$LORA_TRAIN_TORCH", seen, torch)) return torch;
    throw ConfigError("LibTorch", join(seen, "; ") + ". " + kWhatToDo);
  }
  const fs::path built_with = folder_from_build();
  if (!built_with.empty() && takes(built_with, "lib/torch_path", seen, torch)) return torch;
  for (const auto& python : pythons()) {
    const fs::path folder = ask_python(python);
    if (folder.empty()) {
      seen.push_back(python + ": has no torch");
    } else if (takes(folder, python, seen, torch)) {
      return torch;
    }
  }
  throw ConfigError("LibTorch", "not found (" + join(seen, "; ") + "). " + kWhatToDo);
}

}  // namespace lora_train::app
