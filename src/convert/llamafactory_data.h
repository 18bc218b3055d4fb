// LLaMA-Factory's data sets, which its dataset_info.json explains, and its templates.
#pragma once

#include <string>
#include <vector>

#include "converter.h"
#include "source_data.h"

namespace lora_train {

/// The entries for the names in `key` (dataset or eval_dataset), which are refused where dataset_info.json is not found, lacks one, or says
/// what has no counterpart. dataset_dir is looked for in the working directory, then in the folders above the configuration.
std::vector<DataEntry> convert_llamafactory_datasets(Converter& converter, const std::string& key);

/// mix_strategy: interleave_under and interleave_over, with interleave_probs: how often rows of each dataset occur until the first, or
/// the last, is used up.
void weigh_interleaved_datasets(Converter& converter, std::vector<DataEntry>& entries);

/// `template`, with default_system and enable_thinking; `train`: the datasets.
void convert_llamafactory_template(Converter& converter, const std::vector<DataEntry>& train);

}  // namespace lora_train
