#include "run_folders.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/report/run_log.h"

namespace lora_train::cli {

namespace fs = std::filesystem;

namespace {

/// Takes those out of the folder's runs that failed before they wrote a profile, and names them. A folder of nothing else keeps them.
void leave_out_failed_starts(const std::string& folder, std::vector<fs::path>& runs) {
  std::vector<std::string> left_out;
  std::vector<fs::path> others;
  for (const fs::path& run : runs) {
    if (fs::exists(run / "summary.json") && !fs::exists(run / "profile.yaml")) {
      left_out.push_back(run.string());
    } else {
      others.push_back(run);
    }
  }
  if (left_out.empty() || others.empty() || runs == std::vector<fs::path>{folder}) return;
  log_info("left out: " + join(left_out) + ", which ended before step 1; name one to see why");
  runs = std::move(others);
}

}  // namespace

std::vector<fs::path> find_all_runs(const std::vector<std::string>& names) {
  std::vector<fs::path> runs;
  std::vector<std::string> empty;
  for (const auto& name : names) {
    std::vector<fs::path> found = report::find_runs(name);
    leave_out_failed_starts(name, found);
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

}  // namespace lora_train::cli
