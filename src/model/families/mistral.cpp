// Mistral: no biases. A sliding window applies to every layer; null means none, a missing key means 4096.
// Defaults: transformers MistralConfig.
#include "family.h"

namespace lora_train::model {
namespace {

void read_mistral_keys(const ConfigReader& reader, ModelConfig& config) {
  const auto window = read_window(reader);
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), window.value_or(0));
  const char* expected = window ? "sliding_attention" : "full_attention";
  for (const auto& type : reader.optional_texts("layer_types").value_or(std::vector<std::string>{})) {
    if (type != expected) {
      reader.reject("layer_types", "\"" + type + "\" contradicts sliding_window, which makes every layer " + expected +
                                       "; mixed layer types are not supported in the mistral family");
    }
  }
}

}  // namespace

const FamilyRules& mistral_rules() {
  static const FamilyRules rules = {.family = Family::kMistral,
                                    .model_type = "mistral",
                                    .architecture = "MistralForCausalLM",
                                    .num_kv_heads = 8,
                                    .head_dim = std::nullopt,
                                    .max_position_embeddings = 4096 * 32,
                                    .bos_token_id = 1,
                                    .eos_token_id = 2,
                                    .read_own_keys = read_mistral_keys};
  return rules;
}

}  // namespace lora_train::model
