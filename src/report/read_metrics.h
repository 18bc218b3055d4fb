// Reads metrics.jsonl into a RunRecord.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lora_train/report/run_log.h"

namespace lora_train::report {

struct MetricsFile {
  std::string problem = {};  ///< what is wrong with the file; empty: nothing
};

/// The "bins" of an "eval" line; nothing unless all are [count, sum of confidence, number right].
std::vector<ReliabilityBin> bins_of(const nlohmann::ordered_json& line);

/// Fills steps, evals and all figures that the lines contain. Ignores an incomplete last line.
MetricsFile read_metrics(const std::filesystem::path& path, RunRecord& run);

/// The mean loss and token accuracy over the data sets of each evaluation: one entry per step, with an empty name.
std::vector<LoggedEval> mean_evals(const std::vector<LoggedEval>& evals);

}  // namespace lora_train::report
