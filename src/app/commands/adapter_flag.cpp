#include "adapter_flag.h"

#include <filesystem>

#include "lora_train/base/log.h"
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
  if (const std::string& start = loaded.profile.adapter.init_adapter; adapter.empty() && !start.empty()) {
    adapter = find_adapter(start, "init_adapter");
    log_info("adapter: " + adapter + ", which training starts from (init_adapter)");
  }
  if (const std::string trained = adapter_folder(loaded.profile.run.output_dir);
      adapter.empty() && trained != loaded.profile.run.output_dir && loaded.origin.at("output_dir") != "default")
    log_info("the base model, without an adapter; with the one of this profile: --adapter " +
             loaded.profile.run.output_dir);
  return loaded;
}

}  // namespace lora_train::app
