#include "lora_train/run/run_training.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "log_lines.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/config/load.h"
#include "lora_train/data/prepare.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/ranks/connect.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/report/run_page.h"
#include "lora_train/report/summary.h"
#include "lora_train/run/build_run.h"
#include "lora_train/run/rehearsal.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/run_folder/folder_lock.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/run_names.h"
#include "rank_agreement.h"
#include "reporters.h"
#include "result_folder.h"
#include "train_loop.h"

namespace lora_train::run {
namespace {

namespace fs = std::filesystem;

/// Like a resume, throws ConfigError if the training data are no longer those of the finished run in output_dir, unless
/// --allow-changed names datasets. Missing data or a missing model are accepted: the result exists.
void refuse_other_data(const TrainRequest& request) {
  if (std::ranges::count(request.allow_changed, "datasets") > 0) return;
  const fs::path folder = request.profile.run.output_dir;
  try {
    const std::vector<fs::path> checkpoints = run_folder::list(folder);
    if (checkpoints.empty()) return;
    const run_folder::Description found = run_folder::describe(checkpoints.front());
    const auto max_seq_len = load_written_profile(folder / storage::kProfileFile).data.max_seq_len;
    if (!max_seq_len) return;
    const lora::ModelFiles files =
        lora::open_model_and_weights(request.profile.model, request.profile.adapter.init_adapter);
    const data::DataContext context = plan::data_context(request.profile, files);
    if (found.fingerprints.data == data::data_fingerprint(request.profile.data, context, *max_seq_len)) return;
  } catch (const StopError&) {
    throw;
  } catch (const Error&) {
    return;
  }
  throw ConfigError(folder.string(),
                    "the run here is complete, but was trained with different data: the files of datasets, or other "
                    "inputs that decide their tokens, have changed since. Choose one:\n  --output-dir OTHER  starts a "
                    "new run elsewhere\n  --overwrite  deletes the run here\n  --allow-changed datasets  keeps it "
                    "unchanged");
}

using Ranks = std::shared_ptr<ranks::Communicator>;

void take_ledger(const data::PreparedData& data, report::RunSummary& summary) {
  summary.ledger = data.ledger;
  summary.num_held_out = std::max<long long>(0, data.ledger.kept - static_cast<long long>(data.train.size()));
}

/// Stops the clock and the resource watch, so that the line and summary.json have the same times.
void write_end(Reporters& reporters, const report::RunSummary& summary, const Run& run) {
  report::RunClock& clock = *run.clock;
  run.resources->stop();
  clock.stop();
  reporters.write(report::EndRecord{summary.step, summary.status, summary.exit_code, summary.reason, report::now_s(),
                                    clock.elapsed_s(), clock.total(), clock.take_spans()});
}

fs::path profile_of(const Run& run) { return fs::path(run.profile().run.output_dir) / storage::kProfileFile; }

/// Removes from the folder what the run replaces, and writes its profile. Call it once the run is certain to start.
void take_over_folder(const Run& run, const run_folder::OutputDecision& decision) {
  const fs::path output_dir = run.profile().run.output_dir;
  if (decision.overwrites) {
    run_folder::set_run_aside(output_dir);
    set_log_file(output_dir / storage::kLogFile);
  }
  remove_tree(output_dir / storage::kSummaryFile);  // an older result; this run has none until its end
  sync_folder(output_dir);                          // before the new profile.yaml appears
  // Damaged checkpoints that were skipped stay until a newer one is saved.
  if (decision.goes_back) run_folder::delete_after(output_dir, run.state.step);
  log_changes(run, decision.changes);
  const bool changes_no_step = !decision.changes.empty() && !has_steps_left(run);
  if (!changes_no_step || !fs::exists(profile_of(run))) write_file_atomic(profile_of(run), run.checkpoint.profile_yaml);
}

/// The provenance of the request, plus the GPU and its driver.
report::Provenance provenance_of(const Run& run) {
  report::Provenance provenance = run.request.provenance;
  if (!run.device.is_cuda()) return provenance;
  provenance.environment.emplace_back("gpu", run.device.name);
  provenance.environment.emplace_back("driver", run.device.driver);
  return provenance;
}

report::LengthHistogram lengths_of(const data::DocumentStore& store) {
  std::vector<long long> lengths;
  for (std::size_t i = 0; i < store.size(); ++i) lengths.push_back(store.num_tokens(i));
  return report::length_histogram(lengths);
}

/// What the run leaves in the folder besides checkpoints, on the rank that writes; else nothing.
std::unique_ptr<Reporters> open_reporters(const Run& run, const run_folder::OutputDecision& decision) {
  if (!run.is_leader()) return std::make_unique<Reporters>();
  auto reporters = std::make_unique<FileReporters>(run.profile().run, run.request.quiet, run.data.evals.size());
  reporters->drop_after(decision.checkpoint ? run.state.step : -1);
  reporters->write(report::StartRecord{
      run.state.step, run.plan->total_steps(), version(), run.request.profile_hash, run.device.name,
      run.ranks().world_size(), run_folder::run_name(run.profile().run), run.plan->rows_per_epoch(),
      static_cast<long long>(run.data.train.size()), report::now_s(), run.clock->elapsed_s(), run.clock->total(),
      run.clock->price(), run.clock->take_spans(), provenance_of(run), lengths_of(run.data.train)});
  return reporters;
}

void take_state(report::RunSummary& summary, const run_folder::TrainState& state) {
  summary.step = state.step;
  summary.epoch = state.epoch;
  summary.tokens = state.tokens;
  summary.supervised_tokens = state.supervised_tokens;
}

/// Adds the run's work before its checkpoint to summary and clock. The checkpoint has the sums up to itself; a process
/// that ended normally after it has logged the sums up to its end. Work that a killed process did after its last
/// checkpoint does not count, and neither do its steps.
void count_earlier(const fs::path& checkpoint, report::RunSummary& summary, report::RunClock& clock) {
  const run_folder::TrainState state = run_folder::describe(checkpoint).state;
  take_state(summary, state);
  report::RunTimes earlier = state.times;
  const auto logged = report::logged_times(checkpoint.parent_path() / storage::kMetricsFile, state.step);
  if (logged && logged->wall_s() > earlier.wall_s()) earlier = *logged;
  if (earlier[report::Phase::kTrain] == 0 && state.step > 0) {
    log_warning(checkpoint.string() +
                " does not say how long its steps took, so times, rates and costs only count from here on");
    summary.untimed_tokens = state.tokens;
    summary.untimed_steps = state.step;
  }
  clock.go_on_from(earlier);
}

/// The same for a process that ends before it has chosen a checkpoint, with the newest one.
void count_newest(const fs::path& output_dir, report::RunSummary& summary, report::RunClock& clock) {
  try {
    const std::vector<fs::path> checkpoints = run_folder::list(output_dir);
    if (!checkpoints.empty()) count_earlier(checkpoints.front(), summary, clock);
  } catch (const Error&) {  // the process that resumes the run reports it
  }
}

/// One training on this rank: the request, the ranks, and the outcome.
struct Training {
  explicit Training(const TrainRequest& requested) : request(requested) {
    summary.run_name = run_folder::run_name(request.profile.run);
    summary.profile_hash = request.profile_hash;
    summary.version = version();
  }
  TrainRequest request;
  Ranks ranks;
  std::shared_ptr<report::RunClock> clock = std::make_shared<report::RunClock>();
  report::RunSummary summary;

  bool is_leader() const { return ranks->rank() == 0; }
  fs::path output_dir() const { return request.profile.run.output_dir; }
  /// The result of a stop before the output folder is checked.
  TrainResult stopped_at_once() {
    describe_end(summary);
    return {summary.exit_code, report::to_json(summary)};
  }
};

/// A mistake about the output folder does not hide those about the files that the profile names.
run_folder::OutputDecision prepare_or_list_mistakes(TrainRequest& request) {
  try {
    return run_folder::prepare_output_folder({request.profile, request.allow_changed, request.overwrite});
  } catch (const ConfigError& error) {
    if (!request.bad_inputs) throw;
    std::string others;
    try {
      std::rethrow_exception(request.bad_inputs);
    } catch (...) {
      others = describe_current_exception().text();
    }
    throw ConfigError(error.where(), "{}\nAnd in the profile: {}", error.message(), others);
  }
}

/// Rank 0 decides, and holds `lock` during the run; the other ranks follow. A dry run only looks and locks nothing.
run_folder::OutputDecision decide_output_folder(Training& training, std::optional<run_folder::FolderLock>& lock) {
  TrainRequest& request = training.request;
  run_folder::OutputDecision decision;
  if (training.is_leader() && request.dry_run) {
    decision = run_folder::look_at_output_folder({request.profile, request.allow_changed, request.overwrite});
  } else if (training.is_leader()) {
    lock.emplace(request.profile.run.output_dir);
    decision = prepare_or_list_mistakes(request);
    if (decision.is_complete) refuse_other_data(request);
  }
  return share(*training.ranks, decision, request.profile);
}

/// Builds the run. From here on it needs the files that its profile names.
Run build(Training& training, const run_folder::OutputDecision& decision) {
  if (training.request.bad_inputs) std::rethrow_exception(training.request.bad_inputs);
  return build_run(training.request, training.ranks, training.clock, decision.checkpoint);
}

void describe_run(const Run& run, report::RunSummary& summary) {
  take_ledger(run.data, summary);
  summary.total_steps = run.plan->total_steps();
  summary.gpu = run.device.is_cuda() ? run.device.name : "";
  summary.num_gpus = run.device.is_cuda() ? run.ranks().world_size() : 0;
}

/// Rehearses and captures the steps of a run that has steps left. On a GPU this may rebuild the run once, for less
/// memory.
void prepare_first_step(Run& run) {
  if (!has_steps_left(run)) {
    log_info("all {} are already done: nothing left to train", count_of(run.state.step, "step"));
  } else if (run.device.is_cuda()) {
    const auto rebuild = [&] {
      build_from_facts(run);
      if (run.is_leader()) write_file_atomic(profile_of(run), run.checkpoint.profile_yaml);
    };
    log_info("before step 1: {} fits; {}", prepare_steps(run, rebuild), plan::memory_in_words(run.device));
  } else {
    capture_steps(run);
  }
}

/// Trains to the end or to a stop request, and writes the result once the run is done.
void train_to_the_end(Run& run, Reporters& reporters, report::RunSummary& summary) {
  try {
    prepare_first_step(run);
    summary.cuda_graphs = run.capture;
    const std::exception_ptr unsaved = train_loop(run, reporters, summary);
    if (summary.status == "done" && run.is_leader()) {
      const auto start = Clock::now();
      write_result(run, summary);  // smaller than a checkpoint: may fit where that did not
      if (unsaved) log_warning("checkpoint-{} is not written, but the result is: {}", summary.step, summary.adapter);
      run_folder::delete_replaced_run(run.profile().run.output_dir);
      run.clock->add(report::Phase::kResult, std::chrono::duration<double>(Clock::now() - start).count());
    }
    if (unsaved) std::rethrow_exception(unsaved);
  } catch (...) {
    describe_end(summary);
    summary.cuda_graphs = run.capture;
    take_state(summary, run.state);
    write_end(reporters, summary, run);
    throw;
  }
  write_end(reporters, summary, run);
}

void finish_summary(Training& training) {
  report::set_times(training.summary, training.clock->total());
  training.summary.price = training.clock->price();
  training.summary.peak_host_memory_gib = report::peak_host_memory_gib();
}

/// Does everything up to step 1 and runs the largest micro-batch. Writes nothing.
TrainResult end_dry_run(Training& training, const run_folder::OutputDecision& decision) {
  report::RunSummary& summary = training.summary;
  if (decision.is_complete) {
    summary.reason = fmt::format("dry run: the run in {} is already complete", training.request.profile.run.output_dir);
  } else {
    Run run = build(training, decision);
    if (run.is_leader()) check_disk_space(run, decision.overwrites);
    const std::string rehearsed = prepare_steps(
        run, [&] { build_from_facts(run); }, /*captures=*/false);
    summary.reason = fmt::format("dry run: {} ran; nothing was updated or written", rehearsed);
    log_info(summary.reason);
    summary.step = run.state.step;
    summary.total_steps = run.plan->total_steps();
    take_ledger(run.data, summary);
  }
  finish_summary(training);
  return {0, report::to_json(summary)};
}

/// Writes summary.json and report.html, unless those of an earlier finished run still exist. Ranks that write nothing
/// only return their result.
TrainResult finish(Training& training) {
  report::RunSummary& summary = training.summary;
  finish_summary(training);
  if (!training.is_leader()) return {summary.exit_code, report::to_json(summary)};
  if (!run_folder::holds_done_summary(training.output_dir())) {
    report::write_summary(training.output_dir() / storage::kSummaryFile, summary);
    report::write_report(training.output_dir());
  }
  if (summary.status != "failed") log_end(summary, training.request.profile);
  return {summary.exit_code, report::to_json(summary)};
}

/// For an error that ends the run: writes the summary if possible; the original error is still the one reported.
/// run.log stays open, so that the report goes there too.
void finish_failed(Training& training) {
  describe_end(training.summary);
  if (!training.is_leader()) return;
  try {
    set_log_file(training.output_dir() / storage::kLogFile);
    finish(training);
  } catch (...) {
    log_warning("summary.json was not written: " + describe_current_exception().text());
  }
}

/// Decides the folder, builds, trains and finishes, once all ranks are connected.
TrainResult train(Training& training) {
  const TrainRequest& request = training.request;
  std::optional<run_folder::FolderLock> lock;
  run_folder::OutputDecision decision;
  try {
    decision = decide_output_folder(training, lock);
  } catch (const StopError&) {  // while checkpoints were read
    if (request.dry_run) throw;
    describe_end(training.summary);
    if (training.is_leader() && !request.overwrite)
      count_newest(training.output_dir(), training.summary, *training.clock);
    return finish(training);
  }
  if (request.dry_run) return end_dry_run(training, decision);
  if (decision.is_complete) {
    log_info(request.profile.run.output_dir + ": already complete; nothing to do, nothing changed");
    return {0, decision.summary_json};
  }
  if (!decision.overwrites && training.is_leader())
    set_log_file(training.output_dir() / storage::kLogFile);  // else once the old run is moved aside
  try {
    if (decision.checkpoint && training.is_leader())
      count_earlier(*decision.checkpoint, training.summary, *training.clock);
    Run run = build(training, decision);
    describe_run(run, training.summary);
    if (run.is_leader()) check_disk_space(run, decision.overwrites);
    if (run.is_leader()) take_over_folder(run, decision);
    const std::unique_ptr<Reporters> reporters = open_reporters(run, decision);
    run.startup.end_phase("output folder");
    train_to_the_end(run, *reporters, training.summary);
  } catch (const StopError&) {  // before step 1: nothing to save
    describe_end(training.summary);
  } catch (...) {
    finish_failed(training);
    throw;
  }
  const TrainResult result = finish(training);
  set_log_file({});
  return result;
}

}  // namespace

TrainResult run_training(const TrainRequest& requested) {
  Training training(requested);
  TrainResult result;
  try {
    training.ranks = ranks::connect(training.request.world, {.shared_folder = training.request.profile.run.output_dir});
  } catch (const StopError&) {
    return training.stopped_at_once();
  }
  result.exit_code = plan::work_as_rank(*training.ranks, [&] {
    try {
      if (training.request.failure) std::rethrow_exception(training.request.failure);
    } catch (const StopError&) {
      result = training.stopped_at_once();
      return result.exit_code;
    }
    const auto& max_time = training.request.profile.schedule.max_time;
    if (max_time && training.is_leader()) set_max_time(*max_time);
    result = train(training);
    return result.exit_code;
  });
  return result;
}

}  // namespace lora_train::run
