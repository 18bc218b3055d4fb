// Reads a run back from its output folder (profile.yaml, metrics.jsonl and summary.json), for `compare` and report.html.
// Changes nothing; the run may still be going on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/report/eval_files.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

/// A process holds the flock of this file while it writes to the folder (run_folder/folder_lock.h).
inline constexpr const char* kLockFile = ".lora-train.lock";

/// A "train" line.
struct LoggedStep {
  long long step = 0;
  double tokens = 0;                ///< fed to the model so far; estimated if not every step is logged
  double elapsed_s = 0;             ///< so far, in all processes of the run
  double num_labels = 1;            ///< weight of the loss: the step's supervised tokens
  double num_documents = 0;         ///< of the step
  std::optional<double> loss = {};  ///< loss_mean, per supervised token since the last logged step
  std::optional<double> grad_norm = {}, learning_rate = {}, tokens_per_s = {}, step_ms = {}, data_wait_ms = {};
  std::optional<double> memory_gib = {};
  std::optional<double> gpu_utilization = {}, gpu_power_w = {}, gpu_temperature_c = {}, gpu_clock_mhz = {};
  std::optional<double> cpu_percent = {}, host_memory_gib = {};
  std::vector<std::string> gpu_throttle = {};
};

/// A bin of a reliability diagram. Those of an evaluation have equal widths and cover 0 to 1.
struct ReliabilityBin {
  double count = 0, confidence = 0, num_right = 0;  ///< confidence: the sum over what is in the bin
};

/// An "eval" line.
struct LoggedEval {
  long long step = 0;
  double tokens = 0, elapsed_s = 0;  ///< as above, for the steps before the evaluation
  std::string name;
  std::string kind = {};  ///< of a task: choices, exact_match or confidence; empty: a loss line
  std::optional<double> loss = {}, perplexity = {}, token_accuracy = {}, ece = {};
  std::optional<double> accuracy = {}, ece_equal_mass = {}, brier = {}, auroc = {};  ///< of a task
  std::optional<double> mean_confidence = {}, over_confidence = {}, num_rows = {};   ///< of a task
  std::optional<double> eval_s = {};
  double num_tokens = 1;  ///< its weight in a mean over data sets
  std::vector<ReliabilityBin> bins = {};
};

/// The figures of a run; unknown ones are empty.
struct RunFigures {
  std::optional<double> step = {}, total_steps = {}, epoch = {};
  /// Mean over the last 5% of the logged steps (at least one), and the lowest mean over as many steps in a row, so that one
  /// lucky batch does not count as the best result.
  std::optional<double> last_train_loss = {}, best_train_loss = {};
  std::optional<double> train_loss = {};  ///< mean over all steps; only a summary has it
  std::optional<double> eval_loss = {}, best_eval_loss = {}, best_step = {};
  std::optional<double> perplexity = {}, token_accuracy = {};  ///< of the last evaluation
  std::optional<double> tokens = {}, tokens_per_s = {}, peak_memory_gib = {}, peak_host_memory_gib = {};
  std::optional<double> wall_s = {}, train_s = {};  ///< of all processes of the run; train_s: in steps
  std::optional<double> cost_usd = {};              ///< of wall_s
};

/// What ran when, in seconds of the run: its processes follow each other without the time between them.
struct LoggedSpan {
  std::string phase;
  double from_s = 0, to_s = 0;
};

struct RunRecord {
  std::filesystem::path folder;
  std::string name;    ///< run_name, else the folder's
  std::string status;  ///< done | stopped | failed | running | unfinished (no summary.json) | broken (not readable)
  std::string reason;  ///< why the status is not done, and what could not be read; may be empty
  std::vector<std::pair<std::string, std::string>> profile;  ///< key and its value as JSON text; empty: not readable
  std::string summary_json;                                  ///< an object, or empty
  RunFigures figures;
  double num_gpus = 0;            ///< 0: none, or not known
  long long world_size = 1;       ///< ranks of its last process
  std::vector<LoggedStep> steps;  ///< by ascending step
  std::vector<LoggedEval> evals;
  std::vector<DocumentLosses> document_losses = {};  ///< of the last evaluation
  std::vector<EvalAnswer> answers = {};              ///< of the first and the last evaluation
  std::string start_json = {};                       ///< the start line of its last process, an object; or empty
  std::optional<double> started_at = {};             ///< of its first process, in seconds since 1970
  NamedSeconds phases_s;                             ///< what wall_s went into; empty: not known
  std::vector<LoggedSpan> spans;                     ///< in order; what a process did that does not count is not there
  std::vector<double> processes_s;  ///< when each process of metrics.jsonl began, in seconds of the run
};

/// The mean loss and token accuracy over the data sets of each evaluation: one entry per step, with an empty name.
std::vector<LoggedEval> mean_evals(const std::vector<LoggedEval>& evals);

/// Whether the folder holds a run: metrics.jsonl, summary.json or run.log.
bool is_run_folder(const std::filesystem::path& folder);

/// `folder` itself if it holds a run, and those below it that do, at most four levels deep, without hidden ones, by path. Empty if
/// there is none.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

/// The GPU of the summary, as the driver calls it; empty for a run on a CPU, and without a summary.
std::string gpu_of(const RunRecord& run);

/// Never throws for invalid or missing files: `reason` says what is wrong. Links in the folder are not followed.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace lora_train::report
