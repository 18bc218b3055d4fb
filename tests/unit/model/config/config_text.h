// A small valid config.json with keys replaced.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lora_train/model/families/model_config.h"

namespace lora_train::model {

/// A Qwen2 of 2 layers, D 16, H 4, K 2, F 24, V 32. `changes` is a JSON object: keys are added or replaced, and those
/// given as "<absent>" are removed.
inline std::string config_text(const std::string& changes = "{}") {
  auto document = nlohmann::json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 16,
    "intermediate_size": 24, "max_position_embeddings": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 32})");
  const auto replaced = nlohmann::json::parse(changes);
  for (const auto& [key, value] : replaced.items()) {
    if (value == "<absent>") {
      document.erase(key);
    } else {
      document[key] = value;
    }
  }
  return document.dump();
}

inline ModelConfig config_with(const std::string& changes = "{}") {
  return parse_model_config(config_text(changes), "dir/config.json");
}

/// `changes` of another family.
inline ModelConfig family_config(const std::string& model_type, const std::string& changes = "{}") {
  static const std::map<std::string, const char*> architectures = {{"qwen2", "Qwen2ForCausalLM"},
                                                                   {"qwen3", "Qwen3ForCausalLM"},
                                                                   {"mistral", "MistralForCausalLM"},
                                                                   {"llama", "LlamaForCausalLM"}};
  auto all = nlohmann::json::parse(changes);
  all["model_type"] = model_type;
  all["architectures"] = {architectures.at(model_type)};
  return config_with(all.dump());
}

}  // namespace lora_train::model
