// Names that other trainers give to the metrics of evaluations.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lora_train {

/// Names of transformers, TRL and LLaMA-Factory, each with ours: "eval_mean_token_accuracy", token_accuracy.
const std::vector<std::pair<std::string, std::string>>& foreign_metrics();

/// Our name for theirs, in any case; empty if nobody calls a metric so.
std::string metric_from(const std::string& theirs);

}  // namespace lora_train
