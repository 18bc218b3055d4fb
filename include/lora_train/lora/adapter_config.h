// adapter_config.json of a PEFT adapter folder, read and written as PEFT does. Plain data without torch.
// Source: huggingface/peft config.py, tuners/lora/config.py.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/lora/lora_plan.h"

namespace lora_train::lora {

/// The part of adapter_config.json that we use.
struct AdapterConfig {
  LoraOptions options;
  std::string base_model_name_or_path;
  std::string base_weights = {};  ///< fingerprint, for base_model.json (adapter_base.h); not read
};

/// Throws IoError, or FormatError (where = "file: key") for another peft_type, a kind that AdapterKind lacks, biases,
/// modules_to_save, trainable token rows, layers_to_transform and every other setting that we do not support.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

/// The text of adapter_config.json. read_adapter_config reads the same options from it, with `target_modules` as targets.
std::string adapter_config_json(const AdapterConfig& config, const std::vector<std::string>& target_modules);

}  // namespace lora_train::lora
