// The base model that an adapter was trained on. PEFT records its name (adapter_config.json: base_model_name_or_path); base_model.json
// beside it, which only lora-train reads, records its weights: names change with folders and machines.
#pragma once

#include <filesystem>
#include <string>

#include "lora_train/storage/resolve_model.h"

namespace lora_train::lora {

inline constexpr const char* kBaseFile = "base_model.json";

/// The text of base_model.json. `weights` is WeightFiles::fingerprint() of the base.
std::string base_file_text(const std::string& weights);

/// What to do with an adapter that was trained on other weights.
struct OtherBase {
  bool is_allowed = false;  ///< warn instead of refusing
  std::string flag;         ///< that allows it, for the message
};

/// Compares the base of the adapter with `model`. Weights that are known to be others are refused (ConfigError), also under the
/// same name; the same weights may have any name. If base_model.json is missing or not ours, another name in
/// adapter_config.json is warned of. Reads samples of the weights, and those only if base_model.json is there. Throws what
/// read_adapter_config and open_model_weights throw.
void check_base(const std::filesystem::path& adapter, const storage::ResolvedModel& model, const OtherBase& other);

}  // namespace lora_train::lora
