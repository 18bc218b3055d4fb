#include "lora_train/config/keys/metric_names.h"

#include "lora_train/base/text.h"

namespace lora_train {

const std::vector<std::pair<std::string, std::string>>& foreign_metrics() {
  static const std::vector<std::pair<std::string, std::string>> table = {
      {"loss", "eval_loss"},
      {"eval_loss", "eval_loss"},
      {"perplexity", "perplexity"},
      {"eval_perplexity", "perplexity"},
      {"accuracy", "token_accuracy"},
      {"eval_accuracy", "token_accuracy"},
      {"mean_token_accuracy", "token_accuracy"},
      {"eval_mean_token_accuracy", "token_accuracy"}};
  return table;
}

std::string metric_from(const std::string& theirs) {
  for (const auto& [from, ours] : foreign_metrics()) {
    if (lower_case(theirs) == from) return ours;
  }
  return {};
}

}  // namespace lora_train
