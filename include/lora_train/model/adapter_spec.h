// Which linears carry an adapter. Module lora decides this before the model is built, and the model makes room for it.
#pragma once

#include <cstdint>
#include <string>

namespace lora_train::model {

enum class AdapterKind { kLora };

struct AdapterSpec {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t layer = 0;
  std::string linear;  ///< below its layer: "self_attn.q_proj"
  std::int64_t rank = 0;
  double scale = 1.0;        ///< alpha / r, or alpha / sqrt(r) with rsLoRA
  double dropout = 0.0;      ///< on the input of the linear, training only
  double lr_factor_b = 1.0;  ///< multiplies the learning rate of B (LoRA+)
  bool operator==(const AdapterSpec&) const = default;
};

/// "model.layers.3.self_attn.q_proj"
std::string linear_path(std::int64_t layer, const std::string& linear);
std::string linear_path(const AdapterSpec& spec);

/// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": PEFT's name of an adapter tensor.
std::string peft_parameter_name(const AdapterSpec& spec, char a_or_b);

}  // namespace lora_train::model
