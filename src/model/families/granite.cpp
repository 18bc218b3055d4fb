// Granite 3: Llama with four multipliers: on the embedding, on the attention scores, on the output of each block, and
// (as a divisor) on the logits. Defaults: transformers GraniteConfig.
#include "family.h"

namespace lora_train::model {
namespace {

void read_granite_keys(const ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = config.o_bias = reader.boolean("attention_bias", false);
  config.mlp_bias = reader.boolean("mlp_bias", false);
  config.embedding_multiplier = reader.positive("embedding_multiplier", 1);
  config.attention_scale = reader.positive("attention_multiplier", 1);
  config.residual_multiplier = reader.positive("residual_multiplier", 1);
  config.logits_scaling = reader.positive("logits_scaling", 1);
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), 0);
}

}  // namespace

const FamilyRules& granite_rules() {
  static const FamilyRules rules = {.family = Family::kGranite,
                                    .model_type = "granite",
                                    .architecture = "GraniteForCausalLM",
                                    .num_kv_heads = std::nullopt,
                                    .head_dim = std::nullopt,
                                    .max_position_embeddings = 2048,
                                    .bos_token_id = 1,
                                    .eos_token_id = 2,
                                    .read_own_keys = read_granite_keys};
  return rules;
}

}  // namespace lora_train::model
