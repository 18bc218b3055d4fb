// The outputs of a run: metrics.jsonl, TensorBoard and the progress bar.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/report/eval_files.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/report/progress_bar.h"
#include "lora_train/report/summary.h"
#include "lora_train/report/tensorboard.h"

namespace lora_train::run {

/// Receives the records of the training loop. Writes nothing itself, as on all ranks but rank 0.
class Reporters {
 public:
  virtual ~Reporters() = default;
  virtual void write(const report::Record&) {}
  virtual void write(const std::vector<report::EvalAnswer>&) {}      ///< for one task
  virtual void write(const std::vector<report::DocumentLosses>&) {}  ///< for all datasets of an evaluation
  /// Called after every step. `is_logged`: its record was written too.
  virtual void show(const report::ProgressState&, bool is_logged) { static_cast<void>(is_logged); }
  /// Called while something other than steps is running; see ProgressBar::show_activity().
  virtual void show_activity(const report::ProgressState&) {}
  /// Retries writes that failed. Called before a checkpoint is saved.
  virtual void flush() {}
};

/// Writes the files of a run and draws the progress bar. A full disk does not end a run: after a failed write it warns
/// once, keeps the record, and writes it together with the next one that succeeds.
class FileReporters : public Reporters {
 public:
  /// `num_eval_sets`: number of datasets that the run evaluates.
  FileReporters(const RunSection& section, bool quiet, std::size_t num_eval_sets);

  /// See MetricsWriter::drop_after, EvalAnswers::keep_first and TensorBoardWriter::drop_after. Throws IoError.
  void drop_after(std::int64_t step);

  void write(const report::Record& record) override;
  void write(const std::vector<report::EvalAnswer>& answers) override;
  void write(const std::vector<report::DocumentLosses>& sets) override;
  void show(const report::ProgressState& progress, bool is_logged) override;
  void show_activity(const report::ProgressState& now) override { bar_.show_activity(now); }
  void flush() override;

 private:
  std::filesystem::path folder_, document_losses_;
  report::EvalAnswers answers_;
  report::ProgressBar bar_;
  report::MetricsWriter metrics_;
  std::unique_ptr<report::TensorBoardWriter> tensorboard_;
  bool metrics_are_refused_ = false, tensorboard_is_refused_ = false, losses_are_refused_ = false,
       answers_are_refused_ = false;
};

/// Describes the current exception in the summary. A stop request is not an error.
void describe_end(report::RunSummary& summary);

}  // namespace lora_train::run
