#include "lora_train/model/adapter_spec.h"

#include "lora_train/model/layer_shape.h"

namespace lora_train::model {

std::string linear_path(std::int64_t layer, const std::string& linear) { return layer_prefix(layer) + linear; }

std::string linear_path(const AdapterSpec& spec) { return linear_path(spec.layer, spec.linear); }

std::vector<Parameter> adapter_tensors(const AdapterSpec& spec, std::int64_t in_features, std::int64_t out_features) {
  const std::string prefix = "base_model.model." + linear_path(spec) + ".";
  return {{prefix + "lora_A.weight", {spec.rank, in_features}, true, 1.0, InitialValues::kKaimingUniform},
          {prefix + "lora_B.weight", {out_features, spec.rank}, true, spec.lr_factor_b}};
}

}  // namespace lora_train::model
