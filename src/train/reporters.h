// The outputs of a run: metrics.jsonl, TensorBoard and the progress bar.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/metrics/document_losses.h"
#include "lora_train/metrics/eval_answers.h"
#include "lora_train/metrics/metrics_writer.h"
#include "lora_train/metrics/progress_bar.h"
#include "lora_train/metrics/tensorboard.h"

namespace lora_train::train {

/// Receives the records of the training loop.
class Reporters {
 public:
  virtual ~Reporters() = default;
  virtual void write(const metrics::TrainRecord& record) = 0;
  virtual void write(const metrics::EvalRecord& record) = 0;
  virtual void write(const metrics::TaskRecord& record) = 0;
  virtual void write(const std::vector<metrics::EvalAnswer>& answers) = 0;   ///< to one task
  virtual void write(const std::vector<metrics::DocumentLosses>& sets) = 0;  ///< of all data sets of an evaluation
  virtual void write(const metrics::CheckpointRecord& record) = 0;
  virtual void write(const metrics::EndRecord& record) = 0;
  /// Called after every step; is_logged: its record was written too.
  virtual void show(const metrics::ProgressState& progress, bool is_logged) = 0;
  /// Called while something else than steps goes on; see ProgressBar::show_activity().
  virtual void show_activity(const metrics::ProgressState&) {}
  /// Retries writes that failed. Called before a checkpoint is saved.
  virtual void flush() = 0;
};

/// For ranks that write nothing.
class NoReporters : public Reporters {
 public:
  void write(const metrics::TrainRecord&) override {}
  void write(const metrics::EvalRecord&) override {}
  void write(const metrics::TaskRecord&) override {}
  void write(const std::vector<metrics::EvalAnswer>&) override {}
  void write(const std::vector<metrics::DocumentLosses>&) override {}
  void write(const metrics::CheckpointRecord&) override {}
  void write(const metrics::EndRecord&) override {}
  void show(const metrics::ProgressState&, bool) override {}
  void flush() override {}
};

/// Writes the files of a run and draws the progress bar. A full disk does not end a run: after a failed write it warns once,
/// keeps the record, and writes it together with the next one that succeeds.
class FileReporters : public Reporters {
 public:
  /// `num_eval_sets`: data sets that the run evaluates.
  FileReporters(const RunSection& section, bool quiet, std::size_t num_eval_sets);

  /// See MetricsWriter::drop_after, EvalAnswers::keep_first and TensorBoardWriter::drop_after. Throws IoError.
  void drop_after(std::int64_t step);

  void write(const metrics::TrainRecord& record) override;
  void write(const metrics::EvalRecord& record) override;
  void write(const metrics::TaskRecord& record) override;
  void write(const std::vector<metrics::EvalAnswer>& answers) override;
  void write(const std::vector<metrics::DocumentLosses>& sets) override;
  void write(const metrics::CheckpointRecord& record) override;
  void write(const metrics::StartRecord& record);
  void write(const metrics::EndRecord& record) override;
  void show(const metrics::ProgressState& progress, bool is_logged) override;
  void show_activity(const metrics::ProgressState& now) override { bar_.show_activity(now); }
  void flush() override;

 private:
  std::filesystem::path folder_, document_losses_;
  metrics::EvalAnswers answers_;
  metrics::ProgressBar bar_;
  metrics::MetricsWriter metrics_;
  std::unique_ptr<metrics::TensorBoardWriter> tensorboard_;
  bool metrics_are_refused_ = false, tensorboard_is_refused_ = false, losses_are_refused_ = false,
       answers_are_refused_ = false;
};

}  // namespace lora_train::train
