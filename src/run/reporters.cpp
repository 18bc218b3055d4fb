#include "reporters.h"

#include <type_traits>
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
  for (const Reporter reporter : section.report_to) {
    if (reporter == Reporter::kTensorboard) {
      tensorboard_ =
          std::make_unique<report::TensorBoardWriter>(folder_ / storage::kTensorBoardFolder, num_eval_sets > 1);
    }
  }
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

report::StepRecord step_record(const Run& run, const data::StepPlan& plan, const StepResult& result, double step_s) {
  const report::RunTimes times = run.clock->total();
  report::StepRecord record;
  record.step = plan.step;
  record.epoch = plan.epoch_after;
  record.loss = result.loss;
  record.supervised_tokens = plan.num_supervised;
  record.grad_norm = result.grad_norm;
  record.learning_rate = result.learning_rate;
  if (run.profile().optimizer.kind == OptimizerKind::kAdamw8bit)
    record.optim_zero_second_moments = result.zeroed_moments;
  record.tokens = plan.num_tokens;
  record.num_documents = plan.num_documents;
  record.tokens_per_s = static_cast<double>(plan.num_tokens) / step_s;
  record.step_ms = step_s * 1000;
  record.time = report::now_s();
  record.elapsed_s = run.clock->elapsed_s();
  record.train_s = times[report::Phase::kTrain];
  record.cost_usd = times.cost_usd;
  return record;
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

report::ProgressState progress_after(const Run& run, const data::StepPlan& plan, std::int64_t num_steps,
                                     std::int64_t num_tokens) {
  const double train_s = run.clock->here(report::Phase::kTrain);
  report::ProgressState progress;
  progress.step = plan.step;
  progress.total_steps = run.plan->total_steps();
  progress.loss = run.state.loss_sum / run.state.loss_weight;
  progress.steps_per_s = static_cast<double>(num_steps) / train_s;
  progress.tokens_per_s = static_cast<double>(num_tokens) / train_s;
  progress.eta_s = static_cast<double>(progress.total_steps - progress.step) / progress.steps_per_s;
  progress.cost_usd = run.clock->total().cost_usd;
  progress.elapsed_s = run.clock->elapsed_s();
  progress.epoch = plan.epoch_after;
  progress.eval_loss = run.state.eval_loss;
  progress.gpu_utilization = run.resources->gpu_utilization();
  return progress;
}

}  // namespace lora_train::run
