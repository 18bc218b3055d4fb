// summary.json: the result of a run, written once when it ends. The fields of RunSummary are its keys.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/data/cache/ledger.h"
#include "lora_train/report/eval_figures.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

/// An error as --json and summary.json show it.
struct RunError {
  std::string kind = {};  ///< Error::kind(): config, data, format, io, device, numeric, internal
  std::string message = {};
  std::string where = {};  ///< may be empty
};

/// Says if the steps of a run are recorded as CUDA graphs and replayed.
struct StepCapture {
  bool recorded = false;
  /// One sentence: why steps, or which part of them, are not recorded. Written as null when empty.
  std::string reason = "no step was computed";
};

/// JSON as in summary.json.
std::string to_json(const StepCapture& capture);

/// The result of a run. Unknown values (no evaluation ran, no step finished) are empty and written as null; an empty
/// `error` is omitted.
struct RunSummary {
  std::string status = "done";  ///< done | stopped | failed
  int exit_code = 0;            ///< exit code of the process (base/error.h)
  std::string reason = {};      ///< why it ended: "all steps done", "SIGTERM", "already complete", ...
  long long step = 0;           ///< last finished optimizer step
  long long total_steps = 0;    ///< in the whole schedule
  double epoch = 0;
  std::optional<double> train_loss = {};            ///< mean per supervised token over all steps
  std::optional<double> eval_loss = {};             ///< from the last evaluation
  std::optional<double> best_eval_loss = {};        ///< lowest after step 1
  std::optional<long long> best_step = {};          ///< step of the best evaluation by metric_for_best_model
  std::optional<double> best_metric = {};           ///< the metric at best_step
  std::vector<EvalFigures> eval_tasks = {};         ///< by name, the latest evaluated by its process
  long long tokens = 0;                             ///< fed to the model, from step 1 on, all ranks
  long long untimed_tokens = 0, untimed_steps = 0;  ///< the part of these whose time is in no checkpoint; not in the
                                                    ///< file
  long long supervised_tokens = 0;                  ///< tokens with a label
  double tokens_per_s = 0;
  double steps_per_s = 0;
  double wall_s = 0;            ///< all processes of the run, each from its start; see set_times()
  double train_s = 0;           ///< the part of wall_s in training steps
  double eval_share = 0;        ///< share of wall_s in evaluations: 0 to 1
  NamedSeconds phases_s = {};   ///< breakdown of wall_s, in order
  NamedSeconds startup_s = {};  ///< this process to the end of its first step: per phase, in order
  /// Peak device memory held by LibTorch in training, from the rehearsal on, over all processes of the run. Compare it
  /// with the plan (plan/setup/run_device.h). Empty on a CPU.
  std::optional<double> peak_memory_gib = {};
  std::optional<double> startup_peak_memory_gib = {};  ///< peak of this process before training: loading and tuning
  double peak_host_memory_gib = 0;                     ///< resident set, see host_memory.h
  std::string gpu = {};                                ///< name of the device; empty = none, written as null
  int num_gpus = 0;
  StepCapture cuda_graphs = {};
  std::optional<double> cost_usd = {};         ///< cost of wall_s; empty without a price
  Usage usage = {};                            ///< cpu_s, energy_wh, mean_gpu_utilization: over all ranks and processes
  std::optional<Price> price = {};             ///< gpu_price_per_hour and price_source; null without one
  data::Ledger ledger = {};                    ///< of the training documents
  long long num_held_out = 0;                  ///< part of ledger.kept: held out for evaluation (val_set_size)
  std::string adapter = {};                    ///< folder of the result; empty (null) = none written
  std::optional<long long> adapter_step = {};  ///< step of the adapter
  std::string run_name = {};
  std::string profile_hash = {};
  std::string version = {};  ///< lora-train version
  std::optional<RunError> error = {};
};

/// Fills wall_s, train_s, phases_s, cost_usd, usage, and the rates over the whole run: tokens_per_s = tokens / train_s.
void set_times(RunSummary& summary, const RunTimes& times);

/// One line of JSON without a newline. Doubles read back with the same bits; non-finite ones become null, since JSON
/// cannot represent them.
std::string to_json(const RunSummary& summary);

/// The last line of a run that did not fail: "stopped (SIGTERM) at step 12 of 60; ...", or what was trained and where
/// it is.
std::string in_words(const RunSummary& summary);

/// Suggested commands after a run that is done and wrote a result: try it, merge it; else empty. `output_dir` is the
/// run's, `prompt` the flags that prompt its result: {"--prompt", "Hello!"}.
std::vector<std::string> next_commands(const RunSummary& summary, const std::string& output_dir,
                                       const std::vector<std::string>& prompt);

/// The second-to-last line: "time: 44m 10s: data 3.0s, load 12s, train 40m 00s (91%), ...; 1,234 tokens a second in
/// steps; $2.58 at $3.50 an hour (profile); 430 Wh; GPU busy 97% of the time". Leaves out phases below 0.05 s.
std::string times_in_words(const RunSummary& summary);

/// Writes to_json(summary) and a newline atomically: the file appears complete or not at all. Throws IoError.
void write_summary(const std::filesystem::path& path, const RunSummary& summary);

}  // namespace lora_train::report
