#include "lora_train/model/adapter_spec.h"

#include "lora_train/model/layer_shape.h"

namespace lora_train::model {

std::string linear_path(std::int64_t layer, const std::string& linear) { return layer_prefix(layer) + linear; }

std::string linear_path(const AdapterSpec& spec) { return linear_path(spec.layer, spec.linear); }

}  // namespace lora_train::model
