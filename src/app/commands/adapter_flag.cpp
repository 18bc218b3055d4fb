#include "adapter_flag.h"

#include <filesystem>

#include "lora_train/lora/adapter_config.h"

namespace lora_train::app {

std::string base_of(const std::string& adapter) {
  return adapter.empty() ? "" : lora::read_adapter_config(adapter).base_model_name_or_path;
}

LoadedProfile load_with_adapter(const ProfileFlags& flags, std::string& adapter) {
  adapter = find_adapter(adapter);
  ProfileSources sources = flags.sources();
  sources.needs_datasets = false;
  if (const std::string base = base_of(adapter); !base.empty())
    sources.fallbacks.push_back(
        {"model", base, (std::filesystem::path(adapter) / "adapter_config.json").string(), /*literal=*/true});
  LoadedProfile loaded = load_and_log(sources);
  refuse_unbuilt_features(loaded);
  return loaded;
}

}  // namespace lora_train::app
