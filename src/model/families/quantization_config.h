#pragma once

#include "config_reader.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::model {

/// Reads quantization_config of a config.json. Throws FormatError for what this program cannot decode.
QuantizationConfig read_quantization_config(const ConfigReader& reader);

}  // namespace lora_train::model
