// TensorBoard event files: scalars, pictures and the profile. src/report/tensorboard.cpp has the format.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lora_train/config/keys/profile.h"
#include "lora_train/report/metrics_writer.h"

namespace lora_train::report {

/// CRC-32C (Castagnoli, RFC 3720), reflected, start and end inverted. crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);
/// The CRC as stored in records: rotated right by 15, plus 0xa282ead8.
std::uint32_t masked_crc32c(std::string_view bytes);
/// The first record of a file: file_version "brain.Event:2".
std::string version_record(double time);
/// One scalar: summary value {tag, simple_value}.
std::string scalar_record(std::string_view tag, float value, long long step, double time);

/// Writes a new file events.out.tfevents.<unix>.<host>[.n] in `folder`, which it creates if necessary. A resumed run
/// adds a file; TensorBoard reads all files of a folder as one run. Data is buffered and written by flush(), by the
/// destructor, and by any add 10 s after the last write. Readers ignore a torn last record. All functions but the
/// destructor throw IoError; data that could not be written is kept, and the next write continues where the failed one
/// stopped. Not thread-safe.
class TensorBoardWriter {
 public:
  /// `has_several_sets`: the run evaluates more than one dataset.
  explicit TensorBoardWriter(const std::filesystem::path& folder, bool has_several_sets = false);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Makes readers drop the data of earlier files after this step, since these steps run again; flushes.
  void drop_after(long long step);

  /// Adds the profile as the text "args".
  void start(const Profile& profile, double time);

  /// Adds a record; those of a start or a checkpoint add nothing.
  /// A step: train/<key> for every number except step and time, and train/<key>/<rank> for per-rank numbers.
  /// An evaluation: eval/<key> for the dataset evaluated first, eval/<name>/<key> for others and for tasks;
  /// eval/runtime and eval/samples_per_second; with several sets, and for tasks, eval/<name>_loss and so on, with the
  /// names of Hugging Face's Trainer; and the reliability diagram as the picture reliability/<name> if the record has
  /// bins.
  /// The end: train/train_runtime and train/train_steps_per_second; flushes.
  void add(const Record& record);

  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void put(const StepRecord& record);
  void put(const EvalRecord& record);
  void put(const EndRecord& record);
  void flush_when_due();

  std::filesystem::path path_;
  std::string buffer_;
  std::optional<std::string> first_eval_name_;
  bool has_several_sets_ = false;
  std::chrono::steady_clock::time_point last_flush_;
  int fd_ = -1;
};

}  // namespace lora_train::report
