#include "family.h"
#include "lora_train/base/text.h"

namespace lora_train::model {

const std::vector<const FamilyRules*>& families() {
  static const std::vector<const FamilyRules*> table = {
      &qwen2_rules(), &qwen3_rules(), &mistral_rules(), &llama_rules(), &gemma3_rules(), &granite_rules(),
  };
  return table;
}

const FamilyRules* find_family_by_type(std::string_view model_type) {
  for (const auto* rules : families()) {
    if (rules->model_type == model_type) return rules;
  }
  return nullptr;
}

const FamilyRules* find_family_by_architecture(std::string_view architecture) {
  for (const auto* rules : families()) {
    if (rules->architecture == architecture) return rules;
  }
  return nullptr;
}

std::string supported_architectures() {
  std::vector<std::string> names;
  for (const auto* rules : families()) names.emplace_back(rules->architecture);
  return join(names);
}

std::string_view family_name(Family family) {
  for (const auto* rules : families()) {
    if (rules->family == family) return rules->model_type;
  }
  return "";
}

}  // namespace lora_train::model
