#include "run_folders.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/metrics/run_folder.h"

namespace lora_train::app {

namespace fs = std::filesystem;

std::vector<fs::path> find_all_runs(const std::vector<std::string>& names) {
  std::vector<fs::path> runs;
  std::vector<std::string> empty;
  for (const auto& name : names) {
    const auto found = metrics::find_runs(name);
    if (found.empty()) empty.push_back(name);
    for (const auto& run : found) {
      const bool is_there = std::any_of(runs.begin(), runs.end(), [&](const fs::path& other) {
        return fs::weakly_canonical(other) == fs::weakly_canonical(run);
      });
      if (!is_there) runs.push_back(run);
    }
  }
  for (const auto& name : empty) {
    const std::string what =
        fs::exists(name) ? "holds no run: neither metrics.jsonl, summary.json or run.log, nor a folder that has one."
                         : "does not exist.";
    if (runs.empty()) {
      throw ConfigError(name, what + " Expected the output_dir of a run, or a folder of such folders.");
    }
    log_warning(name + ": " + what);
  }
  return runs;
}

}  // namespace lora_train::app
