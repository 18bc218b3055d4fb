// Which linears carry an adapter. Module lora decides it before the model is built; the model makes room for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::model {

/// The seven linears of a decoder layer, in Hugging Face order.
enum class LinearSlot { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kNumLinearSlots = 7;

/// "self_attn.q_proj" .. "mlp.down_proj"
std::string_view slot_path(LinearSlot slot);

/// "model.layers.3.self_attn.q_proj"
std::string linear_path(std::int64_t layer, LinearSlot slot);

/// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": PEFT's name of an adapter tensor.
std::string peft_parameter_name(std::int64_t layer, LinearSlot slot, char a_or_b);

enum class AdapterKind { kLora };

struct AdapterSpec {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t layer = 0;
  LinearSlot slot = LinearSlot::kQ;
  std::int64_t rank = 0;
  double scale = 1.0;    ///< alpha / r, or alpha / sqrt(r) with rsLoRA
  double dropout = 0.0;  ///< on the input of the linear, training only
  bool operator==(const AdapterSpec&) const = default;
};

}  // namespace lora_train::model
