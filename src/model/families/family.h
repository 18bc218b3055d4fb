// What a model family adds to the shape all of them share (Llama's decoder): one file each, listed in registry.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config_reader.h"
#include "lora_train/model/model_config.h"

namespace lora_train::model {

/// Defaults of transformers' configuration class, for keys a file leaves out, and the family's own keys.
struct FamilyRules {
  Family family;
  std::string_view model_type;
  std::string_view architecture;
  std::optional<std::int64_t> num_kv_heads;  ///< empty = as many as heads
  std::optional<std::int64_t> head_dim;      ///< empty = D / H, also for null
  std::int64_t max_position_embeddings;
  std::optional<std::int64_t> bos_token_id, eos_token_id;
  bool tie_word_embeddings = false;
  /// The key of the MLP's activation, and the only one that is supported.
  std::string_view activation_key = "hidden_act", activation_name = "silu";
  kernels::Activation activation = kernels::Activation::kSilu;
  /// Sets biases, norms and windows from the family's own keys; sizes are set already.
  void (*read_own_keys)(const ConfigReader& reader, ModelConfig& config);
  /// RoPE keys; null: rope_config.h's read_rope.
  void (*read_rope)(const ConfigReader& reader, ModelConfig& config) = nullptr;
};

const FamilyRules& qwen2_rules();
const FamilyRules& qwen3_rules();
const FamilyRules& mistral_rules();
const FamilyRules& llama_rules();
const FamilyRules& gemma3_rules();
const FamilyRules& granite_rules();

/// Every family there is.
const std::vector<const FamilyRules*>& families();
const FamilyRules* find_family_by_type(std::string_view model_type);
const FamilyRules* find_family_by_architecture(std::string_view architecture);
/// "Qwen2ForCausalLM, ...", for messages.
std::string supported_architectures();

constexpr std::int64_t kLongestWindow = std::int64_t{1} << 40;  ///< more than any sequence

/// sliding_window, or 4096 (the default of every family that has one) where the file has no such key; empty for null.
std::optional<std::int64_t> read_window(const ConfigReader& reader);

/// Windows by layer_types, whose entries are full_attention or sliding_attention. False where the file has no such key.
bool read_layer_types(const ConfigReader& reader, std::optional<std::int64_t> window, ModelConfig& config);

/// The windows of Qwen2 and Qwen3: layer_types, else use_sliding_window with max_window_layers.
void read_qwen_windows(const ConfigReader& reader, ModelConfig& config);

}  // namespace lora_train::model
