// The sizes of published models, for benchmarks without model files. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lora_train/model/families/model_config.h"

namespace lora_train::model {

/// Names of all shapes: "qwen2.5-7b", ..., and small ones for tests.
std::vector<std::string> known_shapes();

/// The config of one of them. Throws ConfigError (where = "--shape") that lists all names for an unknown one.
ModelConfig known_shape(std::string_view name);

}  // namespace lora_train::model
