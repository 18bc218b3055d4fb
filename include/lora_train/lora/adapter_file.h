// A PEFT adapter folder: adapter_config.json and adapter_model.safetensors, as peft.PeftModel reads and writes them.
// Source: huggingface/peft save_and_load.py; shapes lora_A [r, in], lora_B [out, r].
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/weights/trainables.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::lora {

/// Fills the adapter parameters from folder/adapter_model.safetensors: F32, F16 or BF16. The file lacks the last
/// `num_new_rows` token rows, which stay as they are. `owner_name`: the adapter to fill, if there are several
/// (model/layer_shape.h).
/// Throws FormatError for tensors that are missing, unexpected, not finite, or of another shape.
void load_adapter(const std::filesystem::path& folder, model::Trainables& parameters, std::int64_t num_new_rows = 0,
                  const std::string& owner_name = "");

/// Both files, and base_model.json if config.base_weights is set, ready to write. They point into `parameters` (bf16:
/// hold a copy). Writing throws NumericError, naming the tensor, for NaN or infinity.
std::vector<storage::FileToWrite> adapter_files(const AdapterConfig& config, const model::Trainables& parameters,
                                                Precision precision);

/// Sets each parameter to its initial values (model/layer_shape.h), with PEFT's distributions. Draws them on the host
/// from Philox (seed, parameter name; counter = row, column / 4), so they are the same on every machine.
void init_adapter_values(std::uint64_t seed, model::Trainables& parameters);

}  // namespace lora_train::lora
