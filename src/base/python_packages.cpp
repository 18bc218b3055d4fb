#include "lora_train/base/python_packages.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

extern char** environ;

namespace lora_train {
namespace {

namespace fs = std::filesystem;

// stdout of a program; empty if it fails. Its stderr is dropped.
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

}  // namespace

fs::path program_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

fs::path package_of_build(const std::string& name) {
  const fs::path file = program_folder() / "lib" / (name + "_path");
  std::error_code error;
  return fs::is_regular_file(file, error) ? fs::path(trimmed(read_file(file))) : fs::path();
}

std::vector<std::string> python_programs() {
  std::vector<std::string> found;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const folder = std::getenv(variable);
    if (folder != nullptr && *folder != '\0') found.push_back((fs::path(folder) / "bin" / "python3").string());
  }
  found.emplace_back("python3");
  return found;
}

fs::path find_python_package(const std::string& python, const std::string& package) {
  // Takes the working directory out of the path, as it may have a folder of that name.
  return trimmed(output_of({python, "-c",
                            "import sys, os\n"
                            "sys.path = [p for p in sys.path if p]\n"
                            "import importlib.util\n"
                            "spec = importlib.util.find_spec(sys.argv[1])\n"
                            "print(os.path.dirname(spec.origin) if spec and spec.origin else '')",
                            package}));
}

}  // namespace lora_train
