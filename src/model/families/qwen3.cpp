// Qwen3: RMSNorm over each head of q and k, head_dim independent of D / H, one switch for all attention biases.
// Defaults: transformers Qwen3Config.
#include "family.h"

namespace lora_train::model {
namespace {

void read_qwen3_keys(const ConfigReader& reader, ModelConfig& config) {
  config.qk_norm = true;
  config.qkv_bias = config.o_bias = reader.boolean("attention_bias", false);
  read_qwen_windows(reader, config);
}

}  // namespace

const FamilyRules& qwen3_rules() {
  static const FamilyRules rules = {.family = Family::kQwen3,
                                    .model_type = "qwen3",
                                    .architecture = "Qwen3ForCausalLM",
                                    .num_kv_heads = 32,
                                    .head_dim = 128,
                                    .max_position_embeddings = 32768,
                                    .bos_token_id = std::nullopt,
                                    .eos_token_id = std::nullopt,
                                    .read_own_keys = read_qwen3_keys};
  return rules;
}

}  // namespace lora_train::model
