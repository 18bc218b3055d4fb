// Saves checkpoints while training goes on.
#pragma once

#include <exception>
#include <filesystem>
#include <future>
#include <optional>

#include "lora_train/checkpoint/checkpoint.h"

namespace lora_train::checkpoint {

/// How a save ended.
struct SaveResult {
  std::int64_t step = 0;
  std::filesystem::path folder;
  double durable_s = 0;      ///< from start() until it was on the disk and read back
  std::exception_ptr error;  ///< null: it is saved
};

/// Writes one checkpoint at a time in a thread of its own and rotates after each that verifies. To be called from one
/// thread.
class Saver {
 public:
  struct Options {
    std::filesystem::path output_dir;
    std::optional<std::int64_t> keep;               ///< save_total_limit; nothing = all
    std::vector<std::filesystem::path> sync_first;  ///< see save()
  };
  explicit Saver(Options options) : options_(std::move(options)) {}
  /// Waits for the save under way.
  ~Saver() = default;

  /// What `contents` points to must stay as it is until the result is taken. No other save may be under way.
  void start(Contents contents);
  /// Waits for the end of the save under way; its result is there for poll() or wait().
  void settle() const;
  bool is_busy() const { return pending_.valid(); }
  /// The result of the save under way: nothing while it goes on, or when there is none.
  std::optional<SaveResult> poll();
  /// The same, after waiting for its end.
  std::optional<SaveResult> wait();

 private:
  Options options_;
  std::future<SaveResult> pending_;
};

}  // namespace lora_train::checkpoint
