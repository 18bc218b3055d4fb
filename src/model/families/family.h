// The differences of a model family from the common decoder (Llama's).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "config_reader.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::model {

/// The defaults of transformers' configuration class, for keys missing from a file, and the readers of the family's own
/// keys.
struct FamilyRules {
  Family family;
  std::string_view model_type;
  std::string_view architecture = {};             ///< empty: there is no such class; only wrappers hold this text model
  std::optional<std::int64_t> num_kv_heads = {};  ///< empty = the number of heads
  std::optional<std::int64_t> head_dim = {};      ///< empty = D / H, also for null
  /// The share of a head that RoPE rotates. Empty: it rotates whole heads, and the key may only say so.
  std::optional<double> partial_rotary_factor = {};
  std::int64_t max_position_embeddings;
  std::optional<std::int64_t> bos_token_id = {}, eos_token_id = {};
  bool tie_word_embeddings = false;
  bool has_qkv_bias = false, has_qk_norm = false;
  bool reads_attention_bias = false, reads_mlp_bias = false;  ///< keys that switch all biases of a block
  /// The key that names the MLP's activation, and its only supported value.
  std::string_view activation_key = "hidden_act", activation_name = "silu";
  kernels::Activation activation = kernels::Activation::kSilu;
  /// Reads the family's own keys. Sizes are already set, and layer_window has a 0 per layer.
  void (*read_own_keys)(const ConfigReader& reader, ModelConfig& config);
  /// Reads the RoPE keys; null: read_rope reads them.
  void (*read_rope)(const ConfigReader& reader, ModelConfig& config) = nullptr;
  std::string_view defaults = "{}";  ///< JSON: keys that take another value than in other families if they are missing
};

std::span<const FamilyRules> families();

/// A class that holds a text model beside towers for images or audio.
struct WrapperRules {
  std::string_view architecture, model_type;
  std::string_view text_type;                              ///< model_type of text_config, unless it names another
  std::string_view file_prefix = "language_model.model.";  ///< of the text model in published files
  bool tie_word_embeddings = false;                        ///< the default of the key at the top
  bool may_be_flat = false;               ///< without text_config, the keys of the text model stand at the top
  std::string_view text_defaults = "{}";  ///< JSON: keys that text_config may omit
};

std::span<const WrapperRules> wrappers();

// The RoPE keys of config.json, in all three spellings.

/// Sets config.rotary_dim from partial_rotary_factor, among the RoPE keys or else beside them, as in transformers.
/// config.head_dim must be set.
void read_rotary_dim(const ConfigReader& reader, const FamilyRules& rules, ModelConfig& config);

/// Reads rope_parameters (new), or rope_theta with rope_scaling (`rope_type`, or `type` in old files), which wins if
/// both are present, as in transformers. config.rotary_dim and max_position_embeddings must be set.
void read_rope(const ConfigReader& reader, ModelConfig& config);

/// Reads one set of RoPE keys from the object `rope`, if the file has it. `theta` is the base unless the object has its
/// own.
RopeConfig read_rope_kind(const ConfigReader& reader, const std::optional<ConfigReader>& rope, double theta,
                          const ModelConfig& config);

}  // namespace lora_train::model
