#include "adapter_folder.h"

#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/storage/run_marker.h"

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
  if (given.empty() || !is_adapter(of_run)) return given;
  // Beside the result of a run there may be an adapter of another tool that wrote into the same folder.
  return is_adapter(given) && !storage::read_marker(given) ? given : of_run.string();
}

std::string find_adapter(const std::string& given, const std::string& name) {
  const std::string folder = adapter_folder(given);
  std::error_code code;
  if (folder.empty() || is_adapter(folder)) return folder;
  if (!fs::exists(given, code))
    throw FormatError(given, "no such folder; expected a PEFT folder, or the output_dir of a run");
  if (fs::exists(fs::path(given) / "model" / "config.json", code))
    throw ConfigError(name, given + " is a run that trained all weights: there is no adapter. Its model: --model " +
                                given + "/model.");
  const fs::path checkpoint = newest_checkpoint(given);
  if (checkpoint.empty()) return given;  // whoever reads the folder says what is wrong with it
  throw ConfigError(name, given + " is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: " +
                              name + (name.starts_with("--") ? " " : ": ") + checkpoint.string() + ".");
}

}  // namespace lora_train::app
