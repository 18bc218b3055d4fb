// metrics.jsonl back into a RunRecord.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/metrics/run_folder.h"

namespace lora_train::metrics {

struct MetricsFile {
  std::string problem = {};  ///< what is wrong with the file; may be empty
  double earlier_s = 0;      ///< time of the processes of the run before the last one
};

/// Fills steps, evals and all figures that the lines know. A last line without its end is left out.
MetricsFile read_metrics(const std::filesystem::path& path, RunRecord& run);

/// The mean over data sets of each evaluation, by step; one entry a step, with an empty name.
std::vector<LoggedEval> mean_evals(const std::vector<LoggedEval>& evals);

}  // namespace lora_train::metrics
