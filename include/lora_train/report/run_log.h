// Reads a run back from its output folder (profile.yaml, metrics.jsonl and summary.json), for `compare` and
// report.html. Changes nothing; the run may still be in progress.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/report/eval_files.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

/// A "train" line, and where it stands in the run. loss_mean: the loss if the line has none.
struct LoggedStep : StepRecord {
  double total_tokens = 0;  ///< fed to the model so far; estimated if not every step is logged
  double run_s = 0;         ///< so far, across all processes of the run
  /// The weight of the loss.
  double num_labels() const { return std::max(1.0, static_cast<double>(supervised_tokens)); }
};

/// An "eval" line, with these figures for the steps before it.
struct LoggedEval : EvalRecord {
  double total_tokens = 0, run_s = 0;
  /// The weight in a mean over datasets.
  double weight() const { return std::max(1.0, static_cast<double>(num_tokens)); }
};

/// The figures of a run; unknown figures are empty.
struct RunFigures {
  std::optional<double> step = {}, total_steps = {}, epoch = {};
  /// Mean over the last 5% of the logged steps (at least one), and the lowest mean over as many consecutive steps, so
  /// that one lucky batch does not count as the best result.
  std::optional<double> last_train_loss = {}, best_train_loss = {};
  std::optional<double> train_loss = {};  ///< mean over all steps; only in the summary
  std::optional<double> eval_loss = {}, best_eval_loss = {}, best_step = {};
  std::optional<double> perplexity = {}, token_accuracy = {};  ///< from the last evaluation
  std::optional<double> tokens = {}, tokens_per_s = {}, peak_memory_gib = {}, peak_host_memory_gib = {};
  std::optional<double> wall_s = {}, train_s = {};  ///< across all processes of the run; train_s: in steps
  std::optional<double> cost_usd = {};              ///< cost of wall_s
};

/// One phase in time, in seconds of the run, which does not count the time between processes.
struct LoggedSpan {
  std::string phase;
  double from_s = 0, to_s = 0;
};

struct RunRecord {
  std::filesystem::path folder;
  std::string name;    ///< run_name, else the folder's name
  std::string status;  ///< done | stopped | failed | running | unfinished (no summary.json) | broken (unreadable)
  std::string reason;  ///< why the status is not done, and what is unreadable; may be empty
  std::vector<std::pair<std::string, std::string>> profile;  ///< key and its value as JSON text; empty: unreadable
  std::string summary_json;                                  ///< an object, or empty
  RunFigures figures;
  std::string gpu = {};                        ///< as the driver calls it; empty: none, or no summary
  double num_gpus = 0;                         ///< 0: none or unknown
  double startup_s = 0;                        ///< of the last process, to the end of its first step; 0: unknown
  std::string adapter = {};                    ///< folder of the result; empty: none
  std::optional<long long> adapter_step = {};  ///< step of the result
  long long world_size = 1;                    ///< ranks of the last process
  std::vector<LoggedStep> steps;               ///< by ascending step
  std::vector<LoggedEval> evals;
  std::vector<DocumentLosses> document_losses = {};  ///< from the last evaluation
  std::vector<EvalAnswer> answers = {};              ///< from the first and the last evaluation
  std::string start_json = {};                       ///< the last process's start line, an object; or empty
  std::optional<double> started_at = {};             ///< start of the first process, in seconds since 1970
  NamedSeconds phases_s;                             ///< breakdown of wall_s; empty: unknown
  std::vector<LoggedSpan> spans;                     ///< in order; leaves out discarded work
  std::vector<double> processes_s;                   ///< start of each process in metrics.jsonl, in seconds of the run
};

/// Mean loss and token accuracy over the datasets of each evaluation: one entry per step, with an empty name.
std::vector<LoggedEval> mean_evals(const std::vector<LoggedEval>& evals);

/// True if the folder holds a run: metrics.jsonl, summary.json or run.log.
bool is_run_folder(const std::filesystem::path& folder);

/// The run folders at or below `folder`: itself and subfolders up to four levels deep, without hidden ones, sorted by
/// path. Empty if there is none.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

/// Never throws for invalid or missing files: `reason` says what is wrong. Does not follow links in the folder.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace lora_train::report
