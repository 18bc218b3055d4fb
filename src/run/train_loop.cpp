#include "train_loop.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "bottlenecks.h"
#include "evaluation_schedule.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/data/plan/micro_batch.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/run/background_saver.h"
#include "lora_train/run/train_step.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/run_names.h"
#include "rank_agreement.h"
#include "reporters.h"

namespace lora_train::run {
namespace {

namespace fs = std::filesystem;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// An enqueued step that is not finished.
struct StepInFlight {
  std::shared_ptr<const data::StepPlan> plan;
  double data_wait_ms = 0;
};

/// The training loop and its state between steps.
class Loop {
 public:
  Loop(Run& run, Reporters& reporters, report::RunSummary& summary)
      : run_(run),
        reporters_(reporters),
        summary_(summary),
        evals_(run, reporters),
        saves_(run.profile().run.save_steps, *run.plan) {
    if (run.is_leader()) saver_.emplace(run.saved_parts());
  }

  std::exception_ptr operator()() {
    summary_.total_steps = run_.plan->total_steps();
    try {
      try {
        run_.ranks().begin_steps();
        train();
      } catch (const StopError& stop) {  // between micro-batches: the state is from the last finished step
        log_to_file(LogLevel::kInfo, stop.where() + ": stopping");  // stderr already has the answer to the signal
      }
      run_.ranks().end_steps();
      finish_save();
      check_equal_parameters(run_);
      share_usage(run_);
    } catch (...) {
      if (is_state_worth_saving()) {
        save_last_finished_step();
      } else {
        finish_save();
      }
      throw;
    }
    std::exception_ptr unsaved;
    if (is_save_owed()) {
      start_save();
      rethrow_if_too_many(unsaved = finish_save());
    }
    fill_summary();
    return unsaved;
  }

 private:
  void start_prefetching() {
    data::PrefetchOptions options;
    options.num_workers = run_.profile().data.dataloader_num_workers;
    options.prefetch_factor = run_.profile().data.dataloader_prefetch_factor;
    prefetcher_ = std::make_unique<data::BatchPrefetcher>(run_.data.train, *run_.plan, run_.state.step + 1,
                                                          run_.plan->total_steps(), options);
  }

  void train() {
    const std::int64_t total = run_.plan->total_steps();
    if (run_.state.step == 0 && run_.profile().run.eval_on_start) evals_.evaluate();
    if (run_.state.step > 0 && evals_.is_owed()) {  // a stop came before it
      evals_.evaluate();
      if (evals_.has_new_best()) save();  // the resumed checkpoint may be in another folder
    }
    run_.resources->begin_steps();
    if (run_.state.step < total) {
      start_prefetching();
      reporters_.show_activity({.step = run_.state.step,
                                .total_steps = total,
                                .elapsed_s = run_.clock->elapsed_s(),
                                .activity = "first step"});
    }
    while (!is_at_end()) {
      enqueue_next_step();
      while (!in_flight_.empty() && (has_to_wait() || in_flight_.size() > run_.max_steps_in_flight)) finish_step();
      if (saver_) rethrow_if_too_many(take(saver_->poll()));
      if (!in_flight_.empty()) continue;
      if (run_.profile().run.check_ranks == CheckRanks::kStep) check_equal_parameters(run_);
      if (evals_.is_owed()) evals_.evaluate();
      if (saves_.is_due(run_.state.step) || run_.state.step == interval_ends_at_ || evals_.has_new_best()) save();
    }
  }

  /// True if something is due after the last enqueued step that needs all steps finished.
  bool has_to_wait() const {
    const std::int64_t last = in_flight_.back().plan->step;
    return last == run_.plan->total_steps() || evals_.is_due(last) || saves_.is_due(last) ||
           last == interval_ends_at_ || run_.profile().run.check_ranks == CheckRanks::kStep;
  }

  void enqueue_next_step() {
    const auto start = Clock::now();
    if (in_flight_.empty()) last_finish_ = start;
    try {
      const auto plan = prefetcher_->next_step();
      const double plan_ms = 1000 * seconds_since(start);
      const double data_wait_ms = train_step(
          *run_.context, *plan, [this] { return prefetcher_->next_micro_batch(); }, Update::kApply, own_figures());
      in_flight_.push_back({plan, plan_ms + data_wait_ms});
    } catch (const c10::OutOfMemoryError& error) {
      finish_all_steps();
      plan::throw_out_of_memory(run_.facts, run_.spec, run_.device, error.what_without_backtrace());
    } catch (...) {  // also for a stop: the earlier steps are complete
      finish_all_steps();
      throw;
    }
  }

  RankFigures own_figures() const {
    const bool save_is_due = saver_ && interval_is_over() && !saver_->is_busy();
    const double memory = run_.device.is_cuda() ? gib(plan::device_memory(run_.device).reserved) : 0;
    RankFigures figures{.memory_gib = memory, .save_is_due = save_is_due ? 1.0 : 0.0};
    run_.resources->put(figures);
    return figures;
  }

  void end_startup(std::int64_t step) {
    segments_after_first_step_ = plan::device_memory(run_.device).num_segments;
    run_.startup.end_phase(fmt::format("step {}", step));
    run_.startup.finish();
    summary_.startup_s = run_.startup.phases();
  }

  void finish_all_steps() {
    while (!in_flight_.empty()) finish_step();
  }

  /// Waits for the oldest step in flight and records it.
  void finish_step() {
    const StepInFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    const data::StepPlan& plan = *step.plan;
    const StepResult result = wait_for_step(*run_.context, plan);
    const double step_s = seconds_since(last_finish_);
    last_finish_ = Clock::now();
    if (steps_here_ == 0) end_startup(plan.step);
    run_.state.step = plan.step;
    run_.state.epoch = plan.epoch_after;
    run_.state.tokens += plan.num_tokens;
    run_.state.supervised_tokens += plan.num_supervised;
    run_.clock->add(report::Phase::kTrain, step_s);
    tokens_here_ += plan.num_tokens;
    ++steps_here_;
    run_.state.loss_sum += result.loss * plan.weight_sum;
    run_.state.loss_weight += plan.weight_sum;
    run_.state.total_loss_sum += result.loss * plan.weight_sum;
    run_.state.total_loss_weight += plan.weight_sum;
    // Other ranks learn that the interval is over from the sums of this step; more may be in flight.
    const bool save_is_due =
        run_.ranks().world_size() > 1 ? result.ranks.front().save_is_due > 0 : interval_is_over() && !saver_->is_busy();
    if (save_is_due && interval_ends_at_ < plan.step) {
      interval_ends_at_ = plan.step + static_cast<std::int64_t>(run_.max_steps_in_flight);
    }
    if (run_.ranks().world_size() > 1) rank_times_.add(result.ranks, 1000 * step_s);
    run_.resources->take(result.ranks, run_.ranks().rank());
    bottlenecks_.add(1000 * step_s, step.data_wait_ms, run_.resources->gpu_in_steps());
    const report::ProgressState progress = progress_after(plan, result);
    const bool is_logged = plan.step % run_.profile().run.logging_steps == 0 || plan.step == run_.plan->total_steps();
    if (is_logged) write_record(step, result, step_s, progress);
    reporters_.show(progress, is_logged);
  }

  /// The progress line after a step. Rates and time left come from the steps of this process.
  report::ProgressState progress_after(const data::StepPlan& plan, const StepResult& result) const {
    const double train_s = run_.clock->here(report::Phase::kTrain);
    report::ProgressState progress;
    progress.step = plan.step;
    progress.total_steps = run_.plan->total_steps();
    progress.loss = run_.state.loss_sum / run_.state.loss_weight;
    progress.learning_rate = result.learning_rate;
    progress.steps_per_s = static_cast<double>(steps_here_) / train_s;
    progress.tokens_per_s = static_cast<double>(tokens_here_) / train_s;
    progress.eta_s = static_cast<double>(progress.total_steps - progress.step) / progress.steps_per_s;
    progress.cost_usd = run_.clock->total().cost_usd;
    progress.elapsed_s = run_.clock->elapsed_s();
    progress.epoch = plan.epoch_after;
    progress.eval_loss = run_.state.eval_loss;
    progress.gpu_utilization = run_.resources->gpu_utilization();
    progress.next_eval = evals_.next_after(plan.step);
    progress.next_save = saves_.next_after(plan.step);
    return progress;
  }

  /// Reports a step that is logged.
  void write_record(const StepInFlight& step, const StepResult& result, double step_s,
                    const report::ProgressState& progress) {
    const data::StepPlan& plan = *step.plan;
    const report::RunTimes times = run_.clock->total();
    report::StepRecord record;
    record.step = plan.step;
    record.epoch = plan.epoch_after;
    record.loss = result.loss;
    record.loss_mean = *progress.loss;
    record.supervised_tokens = plan.num_supervised;
    record.grad_norm = result.grad_norm;
    record.learning_rate = result.learning_rate;
    if (run_.profile().optimizer.kind == OptimizerKind::kAdamw8bit)
      record.optim_zero_second_moments = result.zeroed_moments;
    record.tokens = plan.num_tokens;
    record.num_documents = plan.num_documents;
    record.tokens_per_s = static_cast<double>(plan.num_tokens) / step_s;
    record.step_ms = step_s * 1000;
    record.data_wait_ms = step.data_wait_ms;
    record.time = report::now_s();
    record.elapsed_s = run_.clock->elapsed_s();
    record.train_s = times[report::Phase::kTrain];
    record.cost_usd = times.cost_usd;
    record.eta_s = progress.eta_s;
    if (run_.device.is_cuda()) record.memory_gib = gib(plan::device_memory(run_.device).reserved);
    if (run_.ranks().world_size() > 1) rank_times_.take(record);
    run_.resources->fill(record);
    reporters_.write(record);
    run_.state.loss_sum = 0;
    run_.state.loss_weight = 0;
  }

  bool interval_is_over() const {
    const auto& interval = run_.profile().run.save_interval;
    return interval && seconds_since(last_save_) >= *interval;
  }

  bool is_save_owed() const {
    const std::int64_t step = run_.state.step;
    if (!saver_) return false;
    if (step == 0 || saved_step_ == step) return false;
    const fs::path folder = fs::path(run_.profile().run.output_dir) / storage::checkpoint_name(step);
    return step > first_step_ || path_kind(folder) == PathKind::kNone;  // resumed from a checkpoint of another folder
  }

  void save() {
    check_equal_parameters(run_);
    if (saver_) start_save();
  }

  /// Saves in the background. Waits for an earlier save first, so that memory does not grow when the disk is slow.
  void start_save() {
    const auto start = Clock::now();
    rethrow_if_too_many(finish_save());
    const auto copying = Clock::now();
    reporters_.flush();
    run_.state.times = run_.clock->total();
    take_peak_memory();
    saver_->start(run_.state);
    last_save_ = Clock::now();
    stall_s_ = seconds_since(start);
    run_.clock->add(report::Phase::kSave, seconds_since(copying));
  }

  void take_peak_memory() {
    if (!run_.device.is_cuda()) return;
    std::optional<double>& peak = run_.state.peak_memory_gib;
    peak = std::max(peak.value_or(0), gib(plan::device_memory(run_.device).peak_reserved));
  }

  /// Waits for the running save. Returns its error, if any.
  std::exception_ptr finish_save() {
    if (!saver_) return nullptr;
    const auto start = Clock::now();
    const auto result = saver_->wait();
    run_.clock->add(report::Phase::kSave, seconds_since(start));
    return take(result);
  }

  std::exception_ptr take(const std::optional<run_folder::SaveResult>& result) {
    if (!result) return nullptr;
    const std::string name = storage::checkpoint_name(result->step);
    if (result->error) {
      ++failed_saves_;
      warn_of_failure(name, result->error);
      return result->error;
    }
    if (saved_step_ < 0) {
      run_folder::delete_after(run_.profile().run.output_dir, result->step);  // damaged ones, skipped on resume
      run_folder::delete_replaced_run(run_.profile().run.output_dir);
    }
    saved_step_ = result->step;
    failed_saves_ = 0;
    reporters_.write(report::CheckpointRecord{result->step, name, result->durable_s, stall_s_, report::now_s(),
                                              run_.clock->take_spans()});
    log_info("{}: training paused for {:.0f} ms, on disk after {:.2f} s", name, 1000 * stall_s_, result->durable_s);
    return nullptr;
  }

  void warn_of_failure(const std::string& name, const std::exception_ptr& error) const {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& reason) {
      log_warning("saving {} failed ({} in a row): {}{}", name, failed_saves_, reason.what(),
                  saved_step_ >= 0 || first_step_ > 0 ? "; the previous checkpoint is intact" : "");
    }
  }

  bool is_at_end() const { return run_.state.step == run_.plan->total_steps() || evals_.ends_run(); }

  /// Tolerates max_failed_saves - 1 I/O errors in a row, and all after the last step, which is saved once more; any
  /// other error ends the run.
  void rethrow_if_too_many(const std::exception_ptr& error) const {
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const IoError&) {
      if (failed_saves_ >= run_.profile().run.max_failed_saves && !is_at_end()) throw;
    }
  }

  /// False if the current error means that parameters or loss were wrong, here or on another rank.
  static bool is_state_worth_saving() {
    try {
      throw;
    } catch (const UnequalRanks&) {
      return false;
    } catch (const Error& error) {
      return error.exit_code() != ExitCode::kNumeric;
    } catch (...) {
      return true;
    }
  }

  /// Saves the finished steps before an error ends the run, if the state is consistent.
  void save_last_finished_step() {
    try {
      finish_save();
      if (run_.context->is_updating || !in_flight_.empty() || !is_save_owed() ||
          failed_saves_ >= run_.profile().run.max_failed_saves)
        return;
      start_save();
      finish_save();
    } catch (const std::exception& error) {
      log_warning(std::string("the last finished step was not saved: ") + error.what());
    }
  }

  void fill_summary() {
    const run_folder::TrainState& state = run_.state;
    summary_.step = state.step;
    summary_.epoch = state.epoch;
    summary_.eval_loss = state.eval_loss;
    summary_.best_eval_loss = state.best_eval_loss;
    if (state.best_step) summary_.best_step = *state.best_step;
    summary_.best_metric = state.best_metric;
    summary_.eval_tasks = evals_.task_figures();
    summary_.tokens = state.tokens;
    summary_.supervised_tokens = state.supervised_tokens;
    if (run_.device.is_cuda()) {
      take_peak_memory();
      summary_.peak_memory_gib = run_.state.peak_memory_gib;
      summary_.startup_peak_memory_gib = gib(run_.startup_memory.peak_reserved);
      const plan::DeviceMemory memory = plan::device_memory(run_.device);
      log_info("GPU memory: {}; {} segments allocated after step {}", plan::memory_in_words(run_.device),
               memory.num_segments - segments_after_first_step_, first_step_ + 1);
    }
    if (run_.ranks().world_size() > 1 && steps_here_ > 0) log_info(rank_times_.in_words());
    if (state.total_loss_weight > 0) summary_.train_loss = state.total_loss_sum / state.total_loss_weight;
    const bool has_all_steps = state.step == run_.plan->total_steps() && !evals_.is_owed();
    const bool is_done = has_all_steps || evals_.ends_run();
    summary_.status = is_done ? "done" : "stopped";
    summary_.reason = has_all_steps ? "all steps done" : is_done ? evals_.stop_in_words() : stop_reason();
    summary_.exit_code = static_cast<int>(is_done ? ExitCode::kDone : ExitCode::kStopped);
  }

  Run& run_;
  Reporters& reporters_;
  report::RunSummary& summary_;
  EvaluationSchedule evals_;
  const DueSteps saves_;
  std::unique_ptr<data::BatchPrefetcher> prefetcher_;
  const std::int64_t first_step_ = run_.state.step;
  std::optional<BackgroundSaver> saver_;  ///< only on the rank that writes
  std::deque<StepInFlight> in_flight_;
  Clock::time_point last_finish_;
  std::int64_t segments_after_first_step_ = 0;
  std::int64_t saved_step_ = -1, failed_saves_ = 0;
  double stall_s_ = 0;
  Clock::time_point last_save_ = Clock::now();
  std::int64_t interval_ends_at_ = -1;  ///< the step after which save_interval asks for a checkpoint
  RankTimes rank_times_;
  Bottlenecks bottlenecks_{bottleneck_facts(run_)};
  std::int64_t tokens_here_ = 0, steps_here_ = 0;
};

}  // namespace

std::exception_ptr train_loop(Run& run, Reporters& reporters, report::RunSummary& summary) {
  return Loop(run, reporters, summary)();
}

}  // namespace lora_train::run
