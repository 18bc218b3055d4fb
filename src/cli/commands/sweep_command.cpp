// lora-train sweep: runs lib/sweep.sh, a shell script, with this program.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/python_packages.h"
#include "registry.h"

namespace lora_train::cli {

int run_sweep(const std::vector<std::string>& arguments) {
  const std::filesystem::path script = program_folder() / "lib" / "sweep.sh";
  if (!std::filesystem::exists(script)) {
    throw ConfigError(script.string(), "is missing; expected lib/ beside lora-train. Copy the whole folder.");
  }
  std::vector<std::string> words = {"bash", script.string(), "--program",
                                    std::filesystem::read_symlink("/proc/self/exe").string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp("bash", argv.data());
  throw ConfigError("bash", std::string("cannot be started: ") + std::strerror(errno) + ". A sweep is a shell script.");
}

}  // namespace lora_train::cli
