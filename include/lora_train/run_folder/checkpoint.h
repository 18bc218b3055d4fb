// checkpoint-<step>/: everything a run needs to resume as if it had never stopped, and a manifest to verify that it is
// complete. docs/formats.md lists every file and key; docs/durability.md describes the guarantees and their tests.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/report/run_times.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::run_folder {

/// The state that a run carries from step to step, in addition to parameters and optimizer state.
struct TrainState {
  std::int64_t step = 0;        ///< last finished step
  std::int64_t started_at = 0;  ///< start of the run, seconds since 1970; chat templates take it as the current time
  double epoch = 0;
  std::int64_t tokens = 0, supervised_tokens = 0;
  std::optional<double> eval_loss;
  std::optional<double> best_eval_loss;   ///< lowest loss, without the evaluation before step 1
  std::optional<double> best_metric;      ///< metric_for_best_model at best_step
  std::optional<std::int64_t> best_step;  ///< step of the best evaluation, without the one before step 1
  std::int64_t evals_without_gain = 0;    ///< evaluations in a row without a gain (early_stopping_patience)
  std::optional<std::int64_t> eval_step;  ///< step of the last finished evaluation
  double loss_sum = 0;                    ///< weighted sum over the supervised tokens since the last logged step
  double loss_weight = 0;                 ///< sum of their weights; "loss_tokens" in the file
  double total_loss_sum = 0, total_loss_weight = 0;  ///< the same over all steps of the run
  report::RunTimes times;                 ///< of the run until this checkpoint, over all its processes; 0 if unknown
  std::optional<double> peak_memory_gib;  ///< most of any process until then; empty if unknown
  std::int64_t loss_chunk_rows = 0;    ///< rows of a loss chunk, which affect the last bits of the loss; 0 if unknown
  std::int64_t global_batch_size = 0;  ///< rows of a step over all ranks, which a resumed run keeps; 0 if unknown
  std::string tuning;  ///< JSON object with the choices of autotuning, which a resumed run reuses; may be empty
};

/// Hashes of the run's inputs, to tell on resume which of them changed. Empty if the run has no such input.
struct Fingerprints {
  std::string data, tokenizer, chat_template, model, profile;
  bool operator==(const Fingerprints&) const = default;
};

/// A checkpoint in memory.
struct Contents {
  TrainState state;
  std::int64_t total_steps = 0;
  double num_epochs = 0;
  std::int64_t world_size = 1;
  Fingerprints fingerprints;
  std::string profile_yaml;                 ///< resolved; compared with the profile of a run that resumes from here
  std::string trained_with_json;            ///< lora_train.json; empty = none
  std::vector<storage::FileToWrite> files;  ///< adapter or weights, optimizer
};

/// Writes output_dir/checkpoint-<step> with storage::AtomicFolder, the manifest (size and hash per file) last, and
/// reads it back to verify it. Files that others put in a checkpoint of that name move to the new one. `sync_first`:
/// other files that must be on disk before the checkpoint (metrics.jsonl). Returns the folder. Throws IoError, also if
/// something else has the folder's name; older checkpoints then stay unchanged.
std::filesystem::path save(const std::filesystem::path& output_dir, const Contents& contents,
                           const std::vector<std::filesystem::path>& sync_first = {});

/// The checkpoints in a folder, newest first, including damaged ones. Empty if output_dir does not exist. Excludes
/// files, links, and other tools' folders with such a name.
std::vector<std::filesystem::path> list(const std::filesystem::path& output_dir);

/// The names of the entries in a checkpoint folder that save() writes. Others put the rest there.
std::vector<std::string> checkpoint_entries(const std::filesystem::path& checkpoint);

/// Entries with the name of a checkpoint that are not ours.
std::vector<std::filesystem::path> list_others(const std::filesystem::path& output_dir);

/// Compares every file with the manifest, byte for byte. Returns the problem, or an empty string. Calls
/// after_each_mib() after each MiB; it may throw StopError.
std::string verify(const std::filesystem::path& checkpoint, const std::function<void()>& after_each_mib = nullptr);

/// The newest checkpoint that verifies and is named after its step; nothing if there is none. Warns when it skips newer
/// ones, with the reason. Throws StopError on a stop request.
std::optional<std::filesystem::path> newest_good(const std::filesystem::path& output_dir);

/// State and fingerprints of a verified checkpoint. describe() throws FormatError.
struct Description {
  TrainState state;
  Fingerprints fingerprints;
  std::int64_t world_size = 1;
};
Description describe(const std::filesystem::path& checkpoint);

/// The bytes that describe() reads, for other ranks to parse. `checkpoint` is for messages.
std::string describing_bytes(const std::filesystem::path& checkpoint);
Description parse_description(const std::string& bytes, const std::filesystem::path& checkpoint);

/// Deletes the oldest checkpoints up to step `newest` until `keep` are left, at least `newest` itself. Also keeps the
/// checkpoint of `best_step`, and files that others put in a checkpoint. Warns about folders that it cannot delete.
void rotate(const std::filesystem::path& output_dir, std::int64_t newest, std::int64_t keep,
            std::optional<std::int64_t> best_step);

/// Deletes the checkpoints after `step`, once a run has resumed from `step`: they are damaged or obsolete.
void delete_after(const std::filesystem::path& output_dir, std::int64_t step);

/// The result of a save.
struct SaveResult {
  std::int64_t step = 0;
  std::filesystem::path folder;
  double durable_s = 0;      ///< seconds from start() until the checkpoint was on disk and verified
  std::exception_ptr error;  ///< null if the save succeeded
};

/// Writes one checkpoint at a time in a background thread, and deletes old ones (rotate) after each that verifies. Not
/// thread-safe.
class CheckpointWriter {
 public:
  struct Options {
    std::filesystem::path output_dir;
    std::optional<std::int64_t> keep;               ///< save_total_limit; empty keeps all
    std::vector<std::filesystem::path> sync_first;  ///< see save()
  };
  explicit CheckpointWriter(Options options) : options_(std::move(options)) {}
  /// Waits for the running save.
  ~CheckpointWriter() = default;

  /// Starts a save. The memory that `contents` points to must not change until poll() or wait() has returned the
  /// result. No other save may be running.
  void start(Contents contents);
  /// Waits for the running save and keeps its result for poll() or wait().
  void settle() const;
  bool is_busy() const { return pending_.valid(); }
  /// The result of a finished save; nothing while a save is running or if there is none.
  std::optional<SaveResult> poll();
  /// Waits for the running save, then returns its result; nothing if there is none.
  std::optional<SaveResult> wait();

 private:
  Options options_;
  std::future<SaveResult> pending_;
};

}  // namespace lora_train::run_folder
