// Checks shared by plain and quantised weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {

using storage::show_shape;

/// Throws FormatError if the tensor is missing.
const storage::TensorEntry& require_weight(const TensorSpec& spec, const ModelConfig& config,
                                           const storage::WeightFiles& weights);
/// Throws FormatError unless the tensor has the shape of `spec`.
void require_shape(const TensorSpec& spec, const storage::TensorEntry& entry, const ModelConfig& config,
                   const storage::WeightFiles& weights);
/// The quantisation state of a weight: the tensors of a folder that go with `name`, by their names, without the weight.
std::vector<std::string> quantised_parts(const std::string& name, const storage::WeightFiles& weights);

/// The end of messages about a quantised folder.
inline constexpr const char* kAgain = ": quantise the model again, or use the unquantised model";

inline constexpr std::int64_t kMapSize = 16, kNestedMapSize = 256;

}  // namespace lora_train::model
