#include "adapter_flag.h"

#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"

namespace lora_train::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";

/// The name of the checkpoint with the highest step; empty without one.
std::string newest_checkpoint(const fs::path& run) {
  const std::string prefix = "checkpoint-";
  std::string newest;
  long long highest = -1;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(run, code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !fs::exists(entry.path() / kConfig, code)) continue;
    const auto step = parse_integer(name.substr(prefix.size()));
    if (!step || *step <= highest) continue;
    highest = *step;
    newest = name;
  }
  return newest;
}

}  // namespace

std::string find_adapter(const std::string& given) {
  const fs::path folder = given;
  std::error_code code;
  if (given.empty() || fs::exists(folder / kConfig, code)) return given;
  if (fs::exists(folder / "adapter" / kConfig, code)) return (folder / "adapter").string();
  const std::string checkpoint = newest_checkpoint(folder);
  if (checkpoint.empty()) return given;  // whoever reads the folder says what is wrong with it
  throw ConfigError("--adapter",
                    given +
                        " is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: --adapter " +
                        (folder / checkpoint).string() + ".");
}

std::string base_of(const std::string& adapter) {
  return adapter.empty() ? "" : lora::read_adapter_config(adapter).base_model_name_or_path;
}

void add_base_of(const std::string& adapter, ProfileSources& sources) {
  const std::string base = base_of(adapter);
  if (base.empty()) return;
  sources.fallbacks.push_back({"model", base, (fs::path(adapter) / kConfig).string(), /*literal=*/true});
}

}  // namespace lora_train::app
