// The tensors of a checkpoint: those of a PEFT folder (or the fp32 weights of full fine-tuning) and optimizer.safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/weights/trainables.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::run {

/// The files for parameter values and optimizer state. They point into both, which must be in host memory. Writing a file
/// throws NumericError for NaN or infinity. adapter null: full fine-tuning.
std::vector<storage::FileToWrite> checkpoint_files(const lora::AdapterConfig* adapter,
                                                   const std::vector<std::string>& target_modules,
                                                   const model::Trainables& parameters,
                                                   const optim::OptimizerState& optimizer);

/// Reads these files into `parameters` and `optimizer`. Throws FormatError for a tensor that is missing, unexpected or has the
/// wrong shape.
void load_checkpoint_tensors(const std::filesystem::path& checkpoint, bool is_adapter, model::Trainables& parameters,
                             optim::OptimizerState& optimizer);

/// The parameters alone.
void load_checkpoint_parameters(const std::filesystem::path& checkpoint, bool is_adapter,
                                model::Trainables& parameters);

}  // namespace lora_train::run
