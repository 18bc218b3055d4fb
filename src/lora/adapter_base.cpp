#include "lora_train/lora/adapter_base.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMadeBy = "lora-train";
constexpr int kVersion = 1;  // of the fingerprint too

/// The fingerprint in base_model.json; empty if there is none, or it is someone else's file.
std::string recorded_weights(const fs::path& adapter) {
  constexpr std::size_t kMaxBytes = 4096;
  const fs::path file = adapter / kBaseFile;
  if (!fs::is_regular_file(file)) return {};
  const auto object = nlohmann::json::parse(read_start(file, kMaxBytes), nullptr, /*allow_exceptions=*/false);
  const auto value = [&](const char* key) {
    return object.is_object() ? object.value(key, nlohmann::json()) : nlohmann::json();
  };
  const bool is_ours = value("made_by") == kMadeBy && value("version") == kVersion && value("weights").is_string();
  return is_ours ? value("weights").get<std::string>() : "";
}

bool is_name_of(const std::string& name, const storage::ResolvedModel& model) {
  if (name == model.hub_name || name == model.folder.string()) return true;
  std::error_code error;
  return fs::equivalent(name, model.folder, error);
}

}  // namespace

std::string base_file_text(const std::string& weights) {
  const nlohmann::ordered_json object = {{"made_by", kMadeBy}, {"version", kVersion}, {"weights", weights}};
  return object.dump(2) + "\n";
}

void check_base(const fs::path& adapter, const storage::ResolvedModel& model, const OtherBase& other) {
  const std::string name = read_adapter_config(adapter).base_model_name_or_path;
  const std::string used = model.hub_name.empty() ? model.folder.string() : model.hub_name;
  const std::string recorded = recorded_weights(adapter);
  if (recorded.empty()) {
    if (!name.empty() && !is_name_of(name, model)) {
      log_warning(adapter.string() + ": the adapter names " + name + " as its base model; it is used with " + used);
    }
    return;
  }
  if (recorded == storage::open_model_weights(model.folder).fingerprint()) return;
  const std::string what = "the adapter was trained on other weights, those of " +
                           (name.empty() ? "a model without a name" : name) + ", than those in " + used;
  if (!other.is_allowed) {
    throw ConfigError(adapter.string(), what + ". Use it with that model, or pass " + other.flag);
  }
  log_warning(adapter.string() + ": " + what);
}

}  // namespace lora_train::lora
