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

#include "lora_train/report/run_times.h"
#include "lora_train/report/task_figures.h"

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

/// Means per rank, in rank order, over the steps since the last logged one.
struct RankRecord {
  std::vector<double> compute_ms = {};    ///< from the start of a step to its reduction
  std::vector<double> data_wait_ms = {};  ///< wait for the loader's rows
  std::vector<double> memory_gib = {};    ///< device memory in use; 0 on a CPU
};

/// Activity of this process's GPU since the last logged step: means over one reading per second (the last reading if
/// there was none since). Values that the driver does not report have no key.
struct GpuRecord {
  std::optional<double> utilization = {};  ///< gpu_utilization: 0 to 100
  std::optional<double> power_w = {};
  std::optional<double> temperature_c = {};
  std::optional<double> clock_mhz = {};
  std::vector<std::string> throttle = {};      ///< "power_cap", "thermal", "hw_thermal", "power_brake", "hw_slowdown"
  std::optional<double> memory_used_gib = {};  ///< by all processes on the GPU
};

/// A logged optimizer step.
struct TrainRecord {
  long long step = 0;
  double epoch = 0;
  double loss = 0;                  ///< per supervised token in this step
  long long supervised_tokens = 0;  ///< in this step
  double loss_mean = 0;             ///< per supervised token since the last logged step
  double grad_norm = 0;             ///< before clipping
  double learning_rate = 0;         ///< used in this step
  /// adamw_8bit: the share of 8-bit second moments above 0 whose code is 0; key omitted for other optimizers
  std::optional<double> optim_zero_second_moments = {};
  long long tokens = 0;         ///< in this step
  long long num_documents = 0;  ///< in this step
  double tokens_per_s = 0;
  double step_ms = 0;
  double data_wait_ms = 0;
  std::optional<double> memory_gib = {};  ///< device memory in use; empty (null) on a CPU
  std::optional<RankRecord> ranks = {};   ///< rank_compute_ms and so on; keys omitted in a run with one rank
  double time = 0;                        ///< seconds since 1970
  double elapsed_s = 0;                   ///< since the start of this process
  double eta_s = 0;                       ///< time left
  double train_s = 0;                     ///< time in steps, for the whole run
  std::optional<double> cost_usd = {};    ///< for the whole run; empty (null) without a price
  double cpu_percent = 0;                 ///< processor time of this process since the last logged step; 100 = one core
  double host_memory_gib = 0;             ///< resident set of this process
  std::optional<GpuRecord> gpu = {};      ///< gpu_utilization and so on; keys omitted on a CPU
};

/// One evaluation of one dataset.
struct EvalRecord {
  long long step = 0;
  std::string name = {};
  double loss = 0;
  double perplexity = 0;
  double token_accuracy = 0;  ///< 0..1
  long long num_tokens = 0;   ///< supervised
  double eval_s = 0;
  double ece = 0;                         ///< expected calibration error, 0..1
  std::vector<CalibrationBin> bins = {};  ///< for the most likely tokens, as [count, sum of confidence, number right]
  std::vector<Span> spans = {};           ///< this process since the last line with spans
  long long num_documents = 0;
};

/// One evaluation of one task in eval_tasks: an "eval" line with a kind.
struct TaskRecord {
  long long step = 0;
  std::string name = {};
  TaskKind kind = TaskKind::kExactMatch;
  TaskFigures figures = {};
  double eval_s = 0;
  std::vector<Span> spans = {};  ///< as in EvalRecord
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

using Record = std::variant<StartRecord, TrainRecord, EvalRecord, TaskRecord, CheckpointRecord, EndRecord>;

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
