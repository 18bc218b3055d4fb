// Qwen2 and Qwen2.5: biases on q, k and v, never on o. Defaults: transformers Qwen2Config.
#include "family.h"

namespace lora_train::model {
namespace {

void read_qwen2_keys(const ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = true;
  if (reader.boolean("use_mrope", false)) reader.reject("use_mrope", "multimodal RoPE is not supported");
  read_qwen_windows(reader, config);
}

}  // namespace

const FamilyRules& qwen2_rules() {
  static const FamilyRules rules = {.family = Family::kQwen2,
                                    .model_type = "qwen2",
                                    .architecture = "Qwen2ForCausalLM",
                                    .num_kv_heads = 32,
                                    .head_dim = std::nullopt,
                                    .max_position_embeddings = 32768,
                                    .bos_token_id = std::nullopt,
                                    .eos_token_id = std::nullopt,
                                    .read_own_keys = read_qwen2_keys};
  return rules;
}

void read_qwen_windows(const ConfigReader& reader, ModelConfig& config) {
  constexpr std::int64_t kDefaultFullLayers = 28;
  std::optional<std::int64_t> window;
  if (reader.boolean("use_sliding_window", false)) window = read_window(reader);
  if (read_layer_types(reader, window, config) || !window) return;
  const auto first = reader.count("max_window_layers", kDefaultFullLayers);
  for (std::int64_t i = first; i < config.num_layers; ++i) config.layer_window[static_cast<std::size_t>(i)] = *window;
}

}  // namespace lora_train::model
