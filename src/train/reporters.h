// Where a run reports: metrics.jsonl, TensorBoard and the progress bar.
#pragma once

#include <cstdint>
#include <memory>

#include "lora_train/config/profile.h"
#include "lora_train/metrics/metrics_writer.h"
#include "lora_train/metrics/progress_bar.h"
#include "lora_train/metrics/tensorboard.h"

namespace lora_train::train {

/// Where the run writes its numbers. A disk that is full ends no run: what the system refuses is warned of once, kept,
/// and written with the next line that it takes.
class Reporters {
 public:
  Reporters(const Profile& profile, bool quiet);

  /// See MetricsWriter::drop_after. Throws IoError.
  void drop_after(std::int64_t step) { metrics_.drop_after(step); }

  void write(const metrics::TrainRecord& record);
  void write(const metrics::EvalRecord& record);
  void write(const metrics::StartRecord& record);
  void write(const metrics::CheckpointRecord& record);
  void write(const metrics::EndRecord& record);
  /// Tries again what was refused, before a checkpoint is saved that comes after it.
  void flush();

  metrics::ProgressBar bar;

 private:
  metrics::MetricsWriter metrics_;
  std::unique_ptr<metrics::TensorBoardWriter> tensorboard_;
  bool metrics_are_refused_ = false, tensorboard_is_refused_ = false;
};

}  // namespace lora_train::train
