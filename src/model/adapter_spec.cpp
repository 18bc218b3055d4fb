#include "lora_train/model/adapter_spec.h"

namespace lora_train::model {

std::string_view slot_path(LinearSlot slot) {
  switch (slot) {
    case LinearSlot::kQ: return "self_attn.q_proj";
    case LinearSlot::kK: return "self_attn.k_proj";
    case LinearSlot::kV: return "self_attn.v_proj";
    case LinearSlot::kO: return "self_attn.o_proj";
    case LinearSlot::kGate: return "mlp.gate_proj";
    case LinearSlot::kUp: return "mlp.up_proj";
    case LinearSlot::kDown: break;
  }
  return "mlp.down_proj";
}

std::string linear_path(std::int64_t layer, LinearSlot slot) {
  return "model.layers." + std::to_string(layer) + "." + std::string(slot_path(slot));
}

std::string peft_parameter_name(std::int64_t layer, LinearSlot slot, char a_or_b) {
  return "base_model.model." + linear_path(layer, slot) + ".lora_" + a_or_b + ".weight";
}

}  // namespace lora_train::model
