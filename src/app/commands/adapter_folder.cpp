#include "adapter_folder.h"

#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/checkpoint/checkpoint.h"

namespace lora_train::app {
namespace {

namespace fs = std::filesystem;

bool is_adapter(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / "adapter_config.json", code);
}

/// Empty without one.
fs::path newest_checkpoint(const fs::path& run) {
  std::error_code code;
  if (!fs::is_directory(run, code)) return {};
  for (const fs::path& checkpoint : checkpoint::list(run)) {
    if (is_adapter(checkpoint)) return checkpoint;
  }
  return {};
}

}  // namespace

std::string adapter_folder(const std::string& given) {
  const fs::path of_run = fs::path(given) / "adapter";
  return given.empty() || is_adapter(given) || !is_adapter(of_run) ? given : of_run.string();
}

std::string find_adapter(const std::string& given, const std::string& name) {
  const std::string folder = adapter_folder(given);
  std::error_code code;
  if (folder.empty() || is_adapter(folder)) return folder;
  if (!fs::exists(given, code))
    throw FormatError(given, "no such folder; expected a PEFT folder, or the output_dir of a run");
  const fs::path checkpoint = newest_checkpoint(given);
  if (checkpoint.empty()) return given;  // whoever reads the folder says what is wrong with it
  throw ConfigError(name, given + " is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: " +
                              name + (name.starts_with("--") ? " " : ": ") + checkpoint.string() + ".");
}

}  // namespace lora_train::app
