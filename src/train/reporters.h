// Where a run reports: metrics.jsonl, TensorBoard and the progress bar.
#pragma once

#include <cstdint>
#include <memory>

#include "lora_train/config/profile.h"
#include "lora_train/metrics/metrics_writer.h"
#include "lora_train/metrics/progress_bar.h"
#include "lora_train/metrics/tensorboard.h"

namespace lora_train::train {

/// What the training loop reports to.
class Reporters {
 public:
  virtual ~Reporters() = default;
  virtual void write(const metrics::TrainRecord& record) = 0;
  virtual void write(const metrics::EvalRecord& record) = 0;
  virtual void write(const metrics::CheckpointRecord& record) = 0;
  /// After every step; is_logged: a line of it was written too.
  virtual void show(const metrics::ProgressState& progress, bool is_logged) = 0;
  /// Before a checkpoint is saved: what was refused so far is tried again.
  virtual void flush() = 0;
};

/// The files of a run, and the progress bar. A full disk ends no run: what the system refuses is warned of once, kept, and
/// written with the next line that it takes.
class FileReporters : public Reporters {
 public:
  FileReporters(const RunSection& section, bool quiet);

  /// See MetricsWriter::drop_after. Throws IoError.
  void drop_after(std::int64_t step) { metrics_.drop_after(step); }

  void write(const metrics::TrainRecord& record) override;
  void write(const metrics::EvalRecord& record) override;
  void write(const metrics::CheckpointRecord& record) override;
  void write(const metrics::StartRecord& record);
  void write(const metrics::EndRecord& record);
  void show(const metrics::ProgressState& progress, bool is_logged) override;
  void flush() override;

 private:
  metrics::ProgressBar bar_;
  metrics::MetricsWriter metrics_;
  std::unique_ptr<metrics::TensorBoardWriter> tensorboard_;
  bool metrics_are_refused_ = false, tensorboard_is_refused_ = false;
};

}  // namespace lora_train::train
