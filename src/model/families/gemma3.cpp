// Gemma 3, text: norms of 1 + weight before and after each block and on q and k, GeGLU, a scaled embedding, and layers
// with a sliding window and their own RoPE base. Defaults: transformers Gemma3TextConfig.
#include <cmath>

#include "family.h"

namespace lora_train::model {
namespace {

void refuse_softcapping(const ConfigReader& reader) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (reader.is_given(key)) reader.reject(key, "capped logits are not supported; Gemma 3 has null here");
  }
  if (reader.boolean("use_bidirectional_attention", false)) {
    reader.reject("use_bidirectional_attention", "only causal attention is supported");
  }
}

/// Reads layer_types; without it, every layer has a window except each sliding_window_pattern-th.
void read_windows(const ConfigReader& reader, ModelConfig& config) {
  constexpr std::int64_t kDefaultPattern = 6;
  const auto window = read_window(reader);
  if (read_layer_types(reader, window, config)) return;
  const std::int64_t pattern = reader.size("sliding_window_pattern", kLongestWindow, kDefaultPattern);
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    if ((i + 1) % pattern != 0) config.layer_window[static_cast<std::size_t>(i)] = window.value_or(0);
  }
}

void read_gemma3_keys(const ConfigReader& reader, ModelConfig& config) {
  refuse_softcapping(reader);
  config.qk_norm = config.has_output_norms = true;
  config.norm_weight_offset = 1;
  config.qkv_bias = config.o_bias = reader.boolean("attention_bias", false);
  config.attention_scale = std::pow(reader.positive("query_pre_attn_scalar", 256), -0.5);
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  config.rounds_embedding_multiplier = true;
  read_windows(reader, config);
}

/// Reads rope_parameters, one object per kind of layer; or the published keys: rope_theta and rope_scaling for global
/// layers, rope_local_base_freq for layers with a window.
void read_both_ropes(const ConfigReader& reader, ModelConfig& config) {
  constexpr double kGlobalTheta = 1'000'000, kLocalTheta = 10'000;
  const auto by_kind = reader.optional_object("rope_parameters");
  auto global = by_kind ? by_kind->optional_object("full_attention") : std::nullopt;
  if (const auto scaling = reader.optional_object("rope_scaling")) global = scaling;
  const auto local = by_kind ? by_kind->optional_object("sliding_attention") : std::nullopt;
  config.rope = read_rope_kind(reader, global, reader.positive("rope_theta", kGlobalTheta), config);
  config.local_rope = read_rope_kind(reader, local, reader.positive("rope_local_base_freq", kLocalTheta), config);
}

}  // namespace

const FamilyRules& gemma3_rules() {
  static const FamilyRules rules = {.family = Family::kGemma3,
                                    .model_type = "gemma3_text",
                                    .architecture = "Gemma3ForCausalLM",
                                    .num_kv_heads = 4,
                                    .head_dim = 256,
                                    .max_position_embeddings = 131'072,
                                    .bos_token_id = 2,
                                    .eos_token_id = 1,
                                    .tie_word_embeddings = true,
                                    .activation_key = "hidden_activation",
                                    .activation_name = "gelu_pytorch_tanh",
                                    .activation = kernels::Activation::kGeluTanh,
                                    .read_own_keys = read_gemma3_keys,
                                    .read_rope = read_both_ropes};
  return rules;
}

}  // namespace lora_train::model
