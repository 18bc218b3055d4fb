// adapter_model.safetensors of a PEFT folder, checked against the tensors that it should hold. No torch.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/model/layer_shape.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::lora {

/// The file with its tensors under the names of the text class (model/layer_shape.h). Throws FormatError for a missing
/// file, and for a tensor that is missing, unexpected, of another shape, or not F32, F16 or BF16. The message includes
/// the base model that adapter_config.json names.
storage::WeightFiles open_adapter_tensors(const std::filesystem::path& folder,
                                          const std::vector<model::Parameter>& expected);

/// The embedding that PEFT saves with trained rows, if the model was resized before training.
inline constexpr const char* kSavedEmbedding = "base_model.model.model.embed_tokens.token_adapter.base_layer.weight";

/// Opens the file without checking its tensors. Throws FormatError if it is missing or not a safetensors file.
storage::WeightFiles open_adapter_file(const std::filesystem::path& folder);

/// Throws FormatError for NaN or infinity in a tensor of this file.
[[noreturn]] void refuse_non_finite(const storage::WeightFiles& file, const storage::TensorEntry& entry);

}  // namespace lora_train::lora
