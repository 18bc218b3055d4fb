// Reads the RoPE keys of config.json, in all three spellings. Private to the module.
#pragma once

#include "config_reader.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::model {

/// Reads rope_parameters (new), or rope_theta with rope_scaling (`rope_type`, or `type` in old files), which wins if both are
/// present, as in transformers. config.head_dim and max_position_embeddings must be set.
void read_rope(const ConfigReader& reader, ModelConfig& config);

/// Reads one set of RoPE keys from the object `rope`, if the file has it. `theta` is the base unless the object has its own.
RopeConfig read_rope_kind(const ConfigReader& reader, const std::optional<ConfigReader>& rope, double theta,
                          const ModelConfig& config);

}  // namespace lora_train::model
