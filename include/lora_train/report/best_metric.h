// What metric_for_best_model names.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::report {

/// A metric of all evaluation data, of one data set, or of one task.
struct BestMetric {
  std::string name;    ///< as the profile has it
  std::string source;  ///< the data set or the task; empty: all data sets
  bool is_of_task = false;
  std::string metric;  ///< loss, perplexity, token_accuracy, ece; or one of task_metrics()
  bool greater_is_better = false;
};

/// `sets`: the names of the evaluation data sets. Throws ConfigError("metric_for_best_model") for a metric that no evaluation of
/// these sets and tasks has, naming those that there are, and for one that has no better end and no greater_is_better; but not
/// for one of eval_loss, perplexity, token_accuracy or ece where nothing asks for a best model.
BestMetric find_best_metric(const RunSection& section, const std::vector<std::string>& sets,
                            const std::vector<EvalTask>& tasks);

}  // namespace lora_train::report
