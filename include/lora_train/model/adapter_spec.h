// Which linears carry an adapter, and which tensors each has. Module lora decides this before the model is built, and the
// model makes room for it. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/model/parameter.h"

namespace lora_train::model {

struct AdapterSpec {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t layer = 0;
  std::string linear;  ///< name within its layer: "self_attn.q_proj"
  std::int64_t rank = 0;
  double scale = 1.0;        ///< alpha / r, or alpha / sqrt(r) with rsLoRA
  double dropout = 0.0;      ///< on the input of the linear, training only
  double lr_factor_b = 1.0;  ///< multiplies the learning rate of B (LoRA+)
  bool operator==(const AdapterSpec&) const = default;
};

/// "model.layers.3.self_attn.q_proj"
std::string linear_path(std::int64_t layer, const std::string& linear);
std::string linear_path(const AdapterSpec& spec);

/// The tensors of an adapter on a linear with weight [out, in], under PEFT's names; kLora: lora_A [rank, in], then lora_B
/// [out, rank]. All code that trains, initialises, reads, writes or merges adapters uses this list.
std::vector<Parameter> adapter_tensors(const AdapterSpec& spec, std::int64_t in_features, std::int64_t out_features);

}  // namespace lora_train::model
