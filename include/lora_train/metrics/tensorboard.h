// TensorBoard event files: scalars only. Format: reference/formats_and_reliability.md, part 1g.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "lora_train/metrics/metrics_writer.h"

namespace lora_train::metrics {

/// Writes one new events.out.tfevents.<unix>.<host>[.n] file in `folder` (made when missing); a resumed run thus has
/// one more file, which TensorBoard reads as one run. Buffered; reaches the file at flush(), at destruction, and by
/// itself when 10 s have passed since the last time. A torn last record is harmless to readers. Throws IoError from
/// everything but the destructor; what was refused is kept and goes on where it stopped. Not thread-safe.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// train/<key> for every number of the record but step and time.
  void add(const TrainRecord& record);

  /// eval/<key> for the data set that was evaluated first, eval/<name>/<key> for further ones.
  void add(const EvalRecord& record);

  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush_when_due();

  std::filesystem::path path_;
  std::string buffer_;
  std::string first_eval_name_;
  bool has_eval_ = false;
  std::chrono::steady_clock::time_point last_flush_;
  int fd_ = -1;
};

}  // namespace lora_train::metrics
