#include "adapter_flag.h"

#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/lora/adapter_config.h"

namespace lora_train::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";

/// Empty without one.
fs::path newest_checkpoint(const fs::path& run) {
  std::error_code code;
  if (!fs::is_directory(run, code)) return {};
  for (const fs::path& checkpoint : checkpoint::list(run)) {
    if (fs::exists(checkpoint / kConfig, code)) return checkpoint;
  }
  return {};
}

}  // namespace

std::string find_adapter(const std::string& given) {
  const fs::path folder = given;
  std::error_code code;
  if (given.empty() || fs::exists(folder / kConfig, code)) return given;
  if (fs::exists(folder / "adapter" / kConfig, code)) return (folder / "adapter").string();
  const fs::path checkpoint = newest_checkpoint(folder);
  if (checkpoint.empty()) return given;  // whoever reads the folder says what is wrong with it
  throw ConfigError("--adapter",
                    given +
                        " is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: --adapter " +
                        checkpoint.string() + ".");
}

std::string base_of(const std::string& adapter) {
  return adapter.empty() ? "" : lora::read_adapter_config(adapter).base_model_name_or_path;
}

LoadedProfile load_with_adapter(const ProfileFlags& flags, std::string& adapter) {
  adapter = find_adapter(adapter);
  ProfileSources sources = flags.sources();
  sources.needs_datasets = false;
  if (const std::string base = base_of(adapter); !base.empty())
    sources.fallbacks.push_back({"model", base, (fs::path(adapter) / kConfig).string(), /*literal=*/true});
  LoadedProfile loaded = load_and_log(sources);
  refuse_unbuilt_features(loaded);
  return loaded;
}

}  // namespace lora_train::app
