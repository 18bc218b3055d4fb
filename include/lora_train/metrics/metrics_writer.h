// metrics.jsonl: one JSON object per line, "event": start | train | eval | checkpoint | end. Keys are never renamed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace lora_train::metrics {

/// Seconds since 1970, the `time` of the records.
double now_s();

/// First line of every process of a run: step is 0, or the step it goes on from.
struct StartRecord {
  long long step = 0;
  long long total_steps = 0;
  std::string version = {};  ///< of lora-train
  std::string profile_hash = {};
  std::string device = {};  ///< "cpu", or the name of the GPU
  int world_size = 1;
  std::string run_name = {};
  long long num_rows = 0;       ///< of the training data, per epoch
  long long num_documents = 0;  ///< of the training data, per epoch
  double time = 0;
};

/// A logged optimizer step.
struct TrainRecord {
  long long step = 0;
  double epoch = 0;
  double loss = 0;                  ///< of this step, per supervised token
  long long supervised_tokens = 0;  ///< of this step
  double loss_mean = 0;             ///< per supervised token since the last logged step
  double grad_norm = 0;             ///< before clipping
  double learning_rate = 0;         ///< used in this step
  long long tokens = 0;             ///< of this step
  long long num_documents = 0;      ///< of this step
  double tokens_per_s = 0;
  double step_ms = 0;
  double data_wait_ms = 0;
  std::optional<double> memory_gib = {};  ///< device memory in use; empty (null) on a CPU
  double time = 0;                        ///< seconds since 1970
  double elapsed_s = 0;                   ///< since the start of this process
  double eta_s = 0;                       ///< time left
};

/// One evaluation of one data set.
struct EvalRecord {
  long long step = 0;
  std::string name = {};
  double loss = 0;
  double perplexity = 0;
  double token_accuracy = 0;  ///< 0..1
  long long num_tokens = 0;   ///< supervised
  double eval_s = 0;
  double ece = 0;  ///< calibration error, 0..1
};

/// A checkpoint that is complete on disk.
struct CheckpointRecord {
  long long step = 0;
  std::string path = {};  ///< relative to output_dir
  double save_s = 0;      ///< until it was on the disk and read back
  double stall_s = 0;     ///< how long training stood still for it
  double time = 0;
};

/// Last line of a process that ended in an orderly way.
struct EndRecord {
  long long step = 0;
  std::string status = {};  ///< done | stopped | failed
  int exit_code = 0;
  std::string reason = {};
  double time = 0;
  double elapsed_s = 0;
};

using Record = std::variant<StartRecord, TrainRecord, EvalRecord, CheckpointRecord, EndRecord>;

/// Whether a file of such lines has one of this event ("train", "checkpoint", ...); false when it is not there.
bool has_event(const std::filesystem::path& path, std::string_view event);

/// Appends lines; each reaches the file before write() returns. Doubles read back with the same bits, a non-finite one
/// is null. Every function throws IoError when the system refuses; a line that was refused is kept, nothing of it stays
/// in the file, and the next write() tries it again first. Not thread-safe.
class MetricsWriter {
 public:
  /// Opens or creates the file. A last line without its end (the process died while writing) is cut off.
  explicit MetricsWriter(const std::filesystem::path& path);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Going on from a checkpoint: lines of later steps go, the others stay byte for byte (that of a checkpoint can stand
  /// after lines of the steps that ran meanwhile). -1 drops all: the run begins anew.
  void drop_after(long long step);

  void write(const Record& record);
  /// Tries again to write lines that were refused.
  void flush();

 private:
  void open();
  void append(const std::string& line);

  std::filesystem::path path_;
  std::string pending_;  ///< lines that were refused
  int fd_ = -1;
};

}  // namespace lora_train::metrics
