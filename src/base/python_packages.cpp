#include "lora_train/base/python_packages.h"

#include <cstdio>
#include <cstdlib>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

// stdout of a program; empty if it fails. Its stderr is dropped.
std::string output_of(const std::vector<std::string>& command) {
  std::FILE* const pipe = ::popen((shell_line(command) + " </dev/null 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return {};
  std::string text;
  char bytes[512];
  while (const std::size_t count = std::fread(bytes, 1, sizeof bytes, pipe)) text.append(bytes, count);
  return ::pclose(pipe) == 0 ? text : std::string();
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
