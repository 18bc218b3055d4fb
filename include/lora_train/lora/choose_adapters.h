// The adapters of a run, from the profile or from init_adapter, before the model is built.
#pragma once

#include <vector>

#include "lora_train/lora/adapter_config.h"

namespace lora_train::lora {

struct AdapterChoice {
  AdapterConfig config;
  std::vector<model::AdapterSpec> specs;  ///< none with adapter: none
};

/// Throws what read_adapter_config, plan_adapters and check_patterns throw (those of a file are not checked: call it to warn); ConfigError for an init_adapter that the profile
/// contradicts; FormatError for full fine-tuning of a model that is stored quantised.
AdapterChoice choose_adapters(const Profile& profile, const model::ModelConfig& config);

}  // namespace lora_train::lora
