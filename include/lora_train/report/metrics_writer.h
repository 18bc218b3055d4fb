// The records of a run, the provenance in its first one, and metrics.jsonl: one JSON object per line, "event": start |
// train | eval | checkpoint | end. Keys are never renamed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lora_train/report/eval_figures.h"
#include "lora_train/report/run_times.h"

namespace lora_train::report {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

struct Provenance {
  NamedTexts environment = {};  ///< {"command", "lora-train train ..."}, {"host", ...}; empty texts are left out
  NamedTexts set_by = {};       ///< source of each non-default key: "my.yaml:3", "--set", "follows max_steps"
  std::vector<std::string> base_files = {};  ///< the files of set_by that are shipped profiles
  NamedTexts base_values = {};               ///< their values for keys that now have another value
};

/// Counts of documents by length in tokens.
struct LengthHistogram {
  long long bin_width = 0;             ///< bin i holds lengths i * bin_width + 1 to (i + 1) * bin_width; 0: unknown
  std::vector<long long> counts = {};  ///< at most 40 bins
  long long num_tokens = 0;            ///< in all documents
  long long longest = 0;
};

/// Bins of width 1, 2, 5, 10, 20, 50, ... tokens: the smallest width with which at most 40 bins hold the longest.
LengthHistogram length_histogram(const std::vector<long long>& lengths);

/// The current time in seconds since 1970, for the `time` of records.
double now_s();

/// The first line of every process of a run. step is 0 or the step from which the process resumed.
struct StartRecord {
  long long step = 0;
  long long total_steps = 0;
  std::string version = {};  ///< lora-train version
  std::string profile_hash = {};
  std::string device = {};  ///< "cpu", or the name of the GPU
  int world_size = 1;
  std::string run_name = {};
  long long num_rows = 0;       ///< in the training data, per epoch
  long long num_documents = 0;  ///< in the training data, per epoch
  double time = 0;
  double elapsed_s = 0;             ///< since the start of this process
  RunTimes times = {};              ///< phases_s, cost_usd, cpu_s, energy_wh, gpu_*_s: for the whole run up to this
                                    ///< line
  std::optional<Price> price = {};  ///< gpu_price_per_hour and price_source; null without one
  std::vector<Span> spans = {};     ///< this process so far
  Provenance provenance = {};       ///< environment, set_by, base_files
  LengthHistogram document_lengths = {};  ///< for the training data; key omitted if unknown
};

/// A logged optimizer step. Its keys are in src/report/step_fields.h. Empty: unknown, as in a file of an older version.
struct StepRecord {
  long long step = 0;
  std::optional<double> epoch = {};
  std::optional<double> loss = {};           ///< per supervised token in this step
  long long supervised_tokens = 0;           ///< in this step
  std::optional<double> loss_mean = {};      ///< per supervised token since the last logged step
  std::optional<double> grad_norm = {};      ///< before clipping
  std::optional<double> learning_rate = {};  ///< used in this step
  long long tokens = 0;                      ///< in this step
  long long num_documents = 0;               ///< in this step
  std::optional<double> tokens_per_s = {};
  std::optional<double> step_ms = {};
  std::optional<double> data_wait_ms = {};
  std::optional<double> memory_gib = {};       ///< device memory in use; empty on a CPU
  double time = 0;                             ///< seconds since 1970
  double elapsed_s = 0;                        ///< since the start of this process
  double eta_s = 0;                            ///< time left
  std::optional<double> train_s = {};          ///< time in steps, for the whole run
  std::optional<double> cost_usd = {};         ///< for the whole run; empty without a price
  std::optional<double> cpu_percent = {};      ///< processor time of this process since the last logged step; 100 = one
                                               ///< core
  std::optional<double> host_memory_gib = {};  ///< resident set of this process
  /// Activity of this process's GPU since the last logged step: means over one reading per second (the last reading if
  /// there was none since). Empty on a CPU, and what the driver does not report.
  std::optional<double> gpu_utilization = {};  ///< 0 to 100
  std::optional<double> gpu_power_w = {};
  std::optional<double> gpu_temperature_c = {};
  std::optional<double> gpu_clock_mhz = {};
  std::optional<double> gpu_memory_used_gib = {};  ///< by all processes on the GPU
  std::vector<std::string> gpu_throttle = {};  ///< "power_cap", "thermal", "hw_thermal", "power_brake", "hw_slowdown"
  /// Means per rank, in rank order, over the steps since the last logged one; empty in a run with one rank.
  using PerRank = std::optional<std::vector<double>>;
  PerRank rank_compute_ms = {};    ///< from the start of a step to its reduction
  PerRank rank_data_wait_ms = {};  ///< wait for the loader's rows
  PerRank rank_memory_gib = {};    ///< device memory in use; 0 on a CPU
  /// adamw_8bit: the share of 8-bit second moments above 0 whose code is 0; empty for other optimizers
  std::optional<double> optim_zero_second_moments = {};
};

/// One evaluation of a dataset or of a task in eval_tasks: an "eval" line.
struct EvalRecord : EvalFigures {
  long long step = 0;
  double eval_s = 0;
  std::vector<Span> spans = {};  ///< this process since the last line with spans
  long long num_documents = 0;   ///< of a dataset
};

/// A checkpoint that is complete on disk.
struct CheckpointRecord {
  long long step = 0;
  std::string path = {};  ///< relative to output_dir
  double save_s = 0;      ///< until it was on disk and verified
  double stall_s = 0;     ///< how long training paused for it
  double time = 0;
  std::vector<Span> spans = {};  ///< as in EvalRecord
};

/// The last line of a process, unless it was killed.
struct EndRecord {
  long long step = 0;
  std::string status = {};  ///< done | stopped | failed
  int exit_code = 0;
  std::string reason = {};
  double time = 0;
  double elapsed_s = 0;
  RunTimes times = {};           ///< as in StartRecord: for the whole run up to here
  std::vector<Span> spans = {};  ///< as in EvalRecord
};

using Record = std::variant<StartRecord, StepRecord, EvalRecord, CheckpointRecord, EndRecord>;

/// True if a metrics file has a line with this event ("train", "checkpoint", ...); false if the file does not exist.
bool has_event(const std::filesystem::path& path, std::string_view event);

/// Appends lines; each is in the file before write() returns. Doubles read back with the same bits; non-finite ones
/// become null. Every function throws IoError on failure. A line that could not be written leaves no partial text in
/// the file; the writer keeps it, and the next write() retries it first. Not thread-safe.
class MetricsWriter {
 public:
  /// Opens or creates the file. Removes an incomplete last line, left by a process that died while writing.
  explicit MetricsWriter(const std::filesystem::path& path);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// For a resumed run: removes the lines of later steps and keeps all others byte for byte. (A checkpoint's line may
  /// follow lines of steps that ran while it was being saved.) -1 removes all lines, for a new run.
  void drop_after(long long step);

  void write(const Record& record);
  /// Retries lines that could not be written.
  void flush();

 private:
  void open();
  void append(const std::string& line);

  std::filesystem::path path_;
  std::string pending_;  ///< lines not yet written
  int fd_ = -1;
};

}  // namespace lora_train::report
