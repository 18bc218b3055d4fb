// Test-only program for tests/parity/test_model_config.py: one config.json a line on stdin; per line one JSON object on
// stdout with what we made of it, or {"error": "..."}. Floats are printed exactly.
#include <iostream>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/model/families/model_config.h"

namespace {

using namespace lora_train;

nlohmann::json dump(const std::string& line) {
  try {
    const auto config = model::parse_model_config(line, "config.json");
    nlohmann::json tensors = nlohmann::json::object();
    for (const auto& spec : model::expected_tensors(config)) tensors[spec.name] = spec.shape;
    return {{"head_dim", config.head_dim},
            {"rotary_dim", config.rotary_dim},
            {"num_kv_heads", config.num_kv_heads},
            {"rms_norm_eps", config.rms_norm_eps},
            {"max_position_embeddings", config.max_position_embeddings},
            {"tie_word_embeddings", config.tie_word_embeddings},
            {"layer_window", config.layer_window},
            {"rope_type", model::rope_type_name(config.rope.type)},
            {"inv_freq", model::rope_inv_freq(config)},
            {"attention_factor", model::rope_attention_factor(config)},
            {"tensors", tensors},
            {"num_parameters", model::num_parameters(config)}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  set_log_level(LogLevel::kOff);
  std::string line;
  while (std::getline(std::cin, line)) std::cout << dump(line).dump() << "\n";
}
