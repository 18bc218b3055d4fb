#include "adapter_flag.h"

#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/hub_cache.h"
#include "lora_train/storage/resolve_model.h"
#include "lora_train/tokenizer/model_folder.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

std::string config_of(const std::string& adapter) { return (fs::path(adapter) / "adapter_config.json").string(); }

/// The base model that the adapter names; empty if there is no adapter, or it names none.
std::string base_of(const std::string& adapter) {
  return adapter.empty() ? "" : lora::read_adapter_config(adapter).base_model_name_or_path;
}

}  // namespace

std::string find_base(const std::string& adapter) {
  std::string base = base_of(adapter);
  if (base.empty()) return base;
  try {
    storage::resolve_model(base);
  } catch (const FormatError& error) {
    std::error_code code;
    const std::string seen_from =
        fs::path(base).is_relative() ? " (seen from " + fs::current_path(code).string() + ")" : "";
    throw FormatError(config_of(adapter), "base_model_name_or_path is \"" + base + "\": " + error.message() +
                                              seen_from + ". Say where the base model is: --model DIR.");
  }
  return base;
}

bool has_own_template(const std::filesystem::path& adapter, const std::filesystem::path& model) {
  const std::filesystem::path own = adapter / "chat_template.jinja";
  std::error_code code;
  if (!std::filesystem::exists(own, code)) return false;
  const auto of_model = tokenizer::load_chat_template("tokenizer", model);
  return !of_model || of_model->source() != read_file(own);
}

LoadedProfile load_with_adapter(const ProfileFlags& flags, std::string& adapter) {
  adapter = find_adapter(adapter);
  ProfileSources sources = flags.sources();
  sources.needs_datasets = false;
  if (const std::string base = base_of(adapter); !base.empty())
    sources.fallbacks.push_back({"model", base, config_of(adapter), /*literal=*/true});
  LoadedProfile loaded = load_and_log(sources);
  refuse_unbuilt_features(loaded);
  if (!adapter.empty() && loaded.origin.at("model") == config_of(adapter)) find_base(adapter);
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

}  // namespace lora_train::cli
