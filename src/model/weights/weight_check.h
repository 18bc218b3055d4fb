// What the checks of plain and of quantised weights share.
#pragma once

#include <string>

#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {

/// "[2, 3]"
std::string show_shape(const std::vector<std::int64_t>& shape);

/// Throws FormatError if the tensor is missing.
const storage::TensorEntry& require_weight(const TensorSpec& spec, const ModelConfig& config,
                                           const storage::WeightFiles& weights);
/// Throws FormatError unless the tensor has the shape of `spec`.
void require_shape(const TensorSpec& spec, const storage::TensorEntry& entry, const ModelConfig& config,
                   const storage::WeightFiles& weights);
/// The quantisation state of a weight: the tensors of a folder that stand beside `name`, by their names. Not the weight.
std::vector<std::string> quantised_parts(const std::string& name, const storage::WeightFiles& weights);

}  // namespace lora_train::model
