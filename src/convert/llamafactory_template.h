// The template of a file of LLaMA-Factory.
#pragma once

#include <vector>

#include "converter.h"
#include "source_data.h"

namespace lora_train {

/// `template`, with default_system and enable_thinking; `train`: the datasets.
void convert_llamafactory_template(Converter& converter, const std::vector<DataEntry>& train);

}  // namespace lora_train
