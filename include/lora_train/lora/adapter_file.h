// A PEFT adapter folder: adapter_config.json and adapter_model.safetensors, readable by peft.PeftModel and written as it
// writes them. Source: huggingface/peft save_and_load.py; shapes lora_A [r, in], lora_B [out, r].
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/trainables.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::lora {

/// Fills `parameters`, which are those of adapters, from folder/adapter_model.safetensors, F32, F16 or BF16.
/// Throws FormatError for missing, unexpected, misshapen or non-finite tensors.
void load_adapter(const std::filesystem::path& folder, model::Trainables& parameters);

/// Both files, to be written. They point into `parameters` (bf16: hold a copy). Writing throws NumericError, naming the tensor,
/// for NaN and infinity.
std::vector<storage::FileToWrite> adapter_files(const AdapterConfig& config,
                                                const std::vector<std::string>& target_modules,
                                                const model::Trainables& parameters, Precision precision);

/// The initial values of each parameter (model/parameter.h), as PEFT has them. Drawn on the host from Philox (seed, parameter
/// name; counter = row, column / 4), the same on every machine.
void init_adapter_values(std::uint64_t seed, model::Trainables& parameters);

}  // namespace lora_train::lora
