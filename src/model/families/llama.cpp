// Llama: one switch for all attention biases, one for the MLP's; no windows. Defaults: transformers LlamaConfig.
#include "family.h"
#include "lora_train/base/log.h"

namespace lora_train::model {
namespace {

void read_llama_keys(const ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = config.o_bias = reader.boolean("attention_bias", false);
  config.mlp_bias = reader.boolean("mlp_bias", false);
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  for (const auto& type : reader.optional_texts("layer_types").value_or(std::vector<std::string>{})) {
    if (type != "full_attention") {
      reader.reject("layer_types",
                    fmt::format("\"{}\" is not supported in the llama family, which has full_attention only", type));
    }
  }
  if (reader.is_given("sliding_window")) {
    log_warning(reader.path().string() + ": sliding_window: the llama family has no sliding windows; not used");
  }
}

}  // namespace

const FamilyRules& llama_rules() {
  static const FamilyRules rules = {.family = Family::kLlama,
                                    .model_type = "llama",
                                    .architecture = "LlamaForCausalLM",
                                    .num_kv_heads = std::nullopt,
                                    .head_dim = std::nullopt,
                                    .max_position_embeddings = 2048,
                                    .bos_token_id = 1,
                                    .eos_token_id = 2,
                                    .read_own_keys = read_llama_keys};
  return rules;
}

}  // namespace lora_train::model
