// Saves checkpoints while training continues.
#pragma once

#include <exception>
#include <filesystem>
#include <future>
#include <optional>

#include "lora_train/run_folder/checkpoint.h"

namespace lora_train::run_folder {

/// How a save ended.
struct SaveResult {
  std::int64_t step = 0;
  std::filesystem::path folder;
  double durable_s = 0;      ///< seconds from start() until the checkpoint was on disk and verified
  std::exception_ptr error;  ///< null: the save succeeded
};

/// Writes one checkpoint at a time in a background thread, and deletes old ones (rotate) after each that verifies. Not
/// thread-safe.
class CheckpointWriter {
 public:
  struct Options {
    std::filesystem::path output_dir;
    std::optional<std::int64_t> keep;               ///< save_total_limit; nothing = all
    std::vector<std::filesystem::path> sync_first;  ///< see save()
  };
  explicit CheckpointWriter(Options options) : options_(std::move(options)) {}
  /// Waits for the running save.
  ~CheckpointWriter() = default;

  /// The memory that `contents` points to must not change until poll() or wait() has returned the result. No other save may be
  /// running.
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
