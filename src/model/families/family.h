// The differences of a model family from the common decoder (Llama's). One file per family, listed in registry.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config_reader.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::model {

/// The defaults of transformers' configuration class, for keys missing from a file, and the readers of the family's own
/// keys.
struct FamilyRules {
  Family family;
  std::string_view model_type;
  std::string_view architecture;
  std::optional<std::int64_t> num_kv_heads;  ///< empty = the number of heads
  std::optional<std::int64_t> head_dim;      ///< empty = D / H, also for null
  std::int64_t max_position_embeddings;
  std::optional<std::int64_t> bos_token_id, eos_token_id;
  bool tie_word_embeddings = false;
  /// The key that names the MLP's activation, and its only supported value.
  std::string_view activation_key = "hidden_act", activation_name = "silu";
  kernels::Activation activation = kernels::Activation::kSilu;
  /// Sets biases, norms and layer_window (one entry per layer) from the family's own keys. Sizes are already set.
  void (*read_own_keys)(const ConfigReader& reader, ModelConfig& config);
  /// Reads the RoPE keys; null: read_rope reads them.
  void (*read_rope)(const ConfigReader& reader, ModelConfig& config) = nullptr;
};

const FamilyRules& qwen2_rules();
const FamilyRules& qwen3_rules();
const FamilyRules& mistral_rules();
const FamilyRules& llama_rules();
const FamilyRules& gemma3_rules();
const FamilyRules& granite_rules();

/// All families.
const std::vector<const FamilyRules*>& families();
const FamilyRules* find_family_by_type(std::string_view model_type);
const FamilyRules* find_family_by_architecture(std::string_view architecture);
/// "Qwen2ForCausalLM, ...", for messages.
std::string supported_architectures();

constexpr std::int64_t kLongestWindow = std::int64_t{1} << 40;  ///< longer than any sequence

/// sliding_window; 4096 (the default of every family that has windows) if the key is missing, empty if it is null.
std::optional<std::int64_t> read_window(const ConfigReader& reader);

/// Fills layer_window from layer_types, whose entries are full_attention or sliding_attention. If the key is missing,
/// fills it with 0 and returns false.
bool read_layer_types(const ConfigReader& reader, std::optional<std::int64_t> window, ModelConfig& config);

/// Fills layer_window for Qwen2 and Qwen3: from layer_types, else from use_sliding_window and max_window_layers.
void read_qwen_windows(const ConfigReader& reader, ModelConfig& config);

// The RoPE keys of config.json, in all three spellings.

/// Reads rope_parameters (new), or rope_theta with rope_scaling (`rope_type`, or `type` in old files), which wins if
/// both are present, as in transformers. config.head_dim and max_position_embeddings must be set.
void read_rope(const ConfigReader& reader, ModelConfig& config);

/// Reads one set of RoPE keys from the object `rope`, if the file has it. `theta` is the base unless the object has its
/// own.
RopeConfig read_rope_kind(const ConfigReader& reader, const std::optional<ConfigReader>& rope, double theta,
                          const ModelConfig& config);

}  // namespace lora_train::model
