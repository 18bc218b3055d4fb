#include "reporters.h"

#include <algorithm>
#include <variant>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/config/load.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::run {
namespace {

namespace fs = std::filesystem;

/// Warns about the first failed write, and logs when writing works again.
template <typename Write>
void try_to(bool& is_refused, const Write& write) {
  try {
    write();
    if (is_refused) log_info("writing works again; the missing lines have been written");
    is_refused = false;
  } catch (const IoError& error) {
    if (!is_refused) log_warning(std::string(error.what()) + "; the run continues and will retry");
    is_refused = true;
  }
}

}  // namespace

FileReporters::FileReporters(const RunSection& section, bool quiet, std::size_t num_eval_sets)
    : folder_(section.output_dir),
      document_losses_(folder_ / storage::kDocumentLossesFile),
      answers_(folder_ / storage::kEvalAnswersFile),
      bar_(report::ProgressOptions{.quiet = quiet}),
      metrics_(folder_ / storage::kMetricsFile) {
  if (std::ranges::count(section.report_to, Reporter::kTensorboard) > 0)
    tensorboard_ =
        std::make_unique<report::TensorBoardWriter>(folder_ / storage::kTensorBoardFolder, num_eval_sets > 1);
}

void FileReporters::drop_after(std::int64_t step) {
  metrics_.drop_after(step);
  answers_.keep_first(step);
  if (tensorboard_) try_to(tensorboard_is_refused_, [&] { tensorboard_->drop_after(step); });
}

void FileReporters::write(const report::Record& record) {
  try_to(metrics_are_refused_, [&] { metrics_.write(record); });
  if (!tensorboard_) return;
  try_to(tensorboard_is_refused_, [&] {
    const auto* const start = std::get_if<report::StartRecord>(&record);
    if (start != nullptr) tensorboard_->start(load_written_profile(folder_ / storage::kProfileFile), start->time);
    tensorboard_->add(record);
  });
}

void FileReporters::write(const std::vector<report::EvalAnswer>& answers) {
  answers_.take(answers);
  try_to(answers_are_refused_, [&] { answers_.write(); });
}

void FileReporters::write(const std::vector<report::DocumentLosses>& sets) {
  try_to(losses_are_refused_, [&] { report::write_document_losses(document_losses_, sets); });
}

void FileReporters::show(const report::ProgressState& progress, bool is_logged) {
  is_logged ? bar_.log_step(progress) : bar_.update(progress);
}

void FileReporters::flush() {
  try_to(metrics_are_refused_, [&] { metrics_.flush(); });
}

void describe_end(report::RunSummary& summary) {
  const ErrorReport report = describe_current_exception();
  summary.exit_code = static_cast<int>(report.code);
  try {
    throw;
  } catch (const StopError& stop) {
    summary.status = "stopped";
    summary.reason = stop.where();
  } catch (...) {
    summary.status = "failed";
    summary.reason = report.text();
    summary.error = report::RunError{report.kind, report.message, report.where};
  }
}

}  // namespace lora_train::run
