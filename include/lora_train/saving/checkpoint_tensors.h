// The tensors of a checkpoint: a PEFT folder's (or the fp32 weights of full fine-tuning) and optimizer.safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/trainables.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::saving {

/// Files of values and optimizer state. They point into both, which lie in host memory; NaN and infinity are found while they
/// are written (NumericError). adapter null: full fine-tuning.
std::vector<storage::FileToWrite> checkpoint_files(const lora::AdapterConfig* adapter,
                                                   const std::vector<std::string>& target_modules,
                                                   const model::Trainables& parameters,
                                                   const optim::OptimizerState& optimizer);

/// Reads them back, through memory and not a map. Throws FormatError when a tensor is missing, misshapen or unexpected.
void load_checkpoint_tensors(const std::filesystem::path& checkpoint, bool is_adapter, model::Trainables& parameters,
                             optim::OptimizerState& optimizer);

}  // namespace lora_train::saving
