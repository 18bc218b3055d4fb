// Reads a run back from its output folder (profile.yaml, metrics.jsonl and summary.json), for `compare` and
// report.html. Changes nothing; the run may still be in progress.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/report/eval_files.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

/// A "train" line.
struct LoggedStep {
  long long step = 0;
  double tokens = 0;                ///< fed to the model so far; estimated if not every step is logged
  double elapsed_s = 0;             ///< so far, across all processes of the run
  double num_labels = 1;            ///< weight of the loss: the step's supervised tokens
  double num_documents = 0;         ///< in the step
  std::optional<double> loss = {};  ///< loss_mean, per supervised token since the last logged step
  std::optional<double> grad_norm = {}, learning_rate = {}, tokens_per_s = {}, step_ms = {}, data_wait_ms = {};
  std::optional<double> memory_gib = {};
  std::optional<double> gpu_utilization = {}, gpu_power_w = {}, gpu_temperature_c = {}, gpu_clock_mhz = {};
  std::optional<double> cpu_percent = {}, host_memory_gib = {};
  std::vector<std::string> gpu_throttle = {};
};

/// A bin of a reliability diagram. The bins of an evaluation have equal widths and cover 0 to 1.
struct ReliabilityBin {
  double count = 0, confidence = 0, num_right = 0;  ///< confidence: the sum over the bin
};

/// An "eval" line.
struct LoggedEval {
  long long step = 0;
  double tokens = 0, elapsed_s = 0;  ///< as in LoggedStep, for the steps before the evaluation
  std::string name;
  std::string kind = {};  ///< kind of task: choices, exact_match or confidence; empty: a loss line
  std::optional<double> loss = {}, perplexity = {}, token_accuracy = {}, ece = {};
  std::optional<double> accuracy = {}, ece_equal_mass = {}, brier = {}, auroc = {};  ///< tasks only
  std::optional<double> mean_confidence = {}, over_confidence = {}, num_rows = {};   ///< tasks only
  std::optional<double> eval_s = {};
  double num_tokens = 1;  ///< weight in a mean over datasets
  std::vector<ReliabilityBin> bins = {};
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
  double num_gpus = 0;            ///< 0: none or unknown
  long long world_size = 1;       ///< ranks of the last process
  std::vector<LoggedStep> steps;  ///< by ascending step
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

/// The GPU named in the summary, as the driver calls it; empty for a run on a CPU or without a summary.
std::string gpu_of(const RunRecord& run);

/// Never throws for invalid or missing files: `reason` says what is wrong. Does not follow links in the folder.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace lora_train::report
