#include <algorithm>

#include "evaluate.h"
#include "folder_lock.h"
#include "lora_train/base/error.h"
#include "lora_train/base/error_report.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/version.h"
#include "lora_train/config/load.h"
#include "lora_train/data/run_plan.h"
#include "lora_train/metrics/host_memory.h"
#include "lora_train/train/run.h"
#include "output_folder.h"
#include "result_folder.h"
#include "run_state.h"

namespace lora_train::train {
namespace {

namespace fs = std::filesystem;

metrics::Ledger summary_ledger(const data::Ledger& ledger) {
  metrics::Ledger out{ledger.total, ledger.kept, {}};
  for (const auto& entry : ledger.entries) {
    out.reasons.push_back({data::name_of(entry.reason), entry.count, entry.first_source});
  }
  return out;
}

void write_end(Reporters& reporters, const metrics::RunSummary& summary, double elapsed_s) {
  reporters.write(
      metrics::EndRecord{summary.step, summary.status, summary.exit_code, summary.reason, metrics::now_s(), elapsed_s});
}

/// What the error that is being handled leaves in the summary.
void describe_failure(metrics::RunSummary& summary) {
  const ErrorReport report = describe_current_exception();
  summary.status = "failed";
  summary.exit_code = static_cast<int>(report.code);
  summary.reason = report.text();
  summary.error = metrics::RunError{report.kind, report.message, report.where};
}

/// The run is known to start: what stands in the folder makes room for it.
void take_over(const TrainRequest& request, const OutputDecision& decision, std::int64_t step) {
  const fs::path output_dir = request.profile.output_dir;
  if (request.overwrite) {
    delete_run(output_dir);
    set_log_file(output_dir / "run.log");
  }
  remove_tree(output_dir / "summary.json");  // of what was there before: until the end there is no result
  sync_folder(output_dir);                   // before another profile.yaml stands there
  // What was passed over as damaged stays until something newer is saved.
  if (decision.goes_back) checkpoint::delete_after(output_dir, step);
}

/// The run itself, from a folder that is ours.
void run_in_folder(const TrainRequest& request, const OutputDecision& decision, metrics::RunSummary& summary) {
  const fs::path output_dir = request.profile.output_dir;
  const auto run = build_run(request, decision.checkpoint);
  summary.ledger = summary_ledger(run->data.ledger);
  summary.total_steps = run->plan->total_steps();
  take_over(request, decision, run->state.step);
  write_file_atomic(output_dir / "profile.yaml", to_yaml(run->resolved));
  Reporters reporters(request.profile, request.quiet);
  reporters.drop_after(decision.checkpoint ? run->state.step : -1);
  reporters.write(metrics::StartRecord{run->state.step, run->plan->total_steps(), version(), request.profile_hash,
                                       "cpu", 1, run_name(request.profile), run->plan->rows_per_epoch(),
                                       static_cast<long long>(run->data.train.size()), metrics::now_s()});
  try {
    train_loop(*run, reporters, summary);
    if (summary.status == "done") {
      summary.adapter = write_result(request.profile, run->files, run->adapters, run->model.weights->parameters(),
                                     run->state).string();
    }
  } catch (...) {
    describe_failure(summary);
    summary.step = run->state.step;
    summary.epoch = run->state.epoch;
    summary.tokens = run->state.tokens;
    summary.supervised_tokens = run->state.supervised_tokens;
    write_end(reporters, summary, run->elapsed_s());
    throw;
  }
  write_end(reporters, summary, run->elapsed_s());
}

metrics::RunSummary new_summary(const TrainRequest& request) {
  metrics::RunSummary summary;
  summary.run_name = run_name(request.profile);
  summary.profile_hash = request.profile_hash;
  summary.version = version();
  return summary;
}

void finish_summary(metrics::RunSummary& summary, const Profile& profile, Clock::time_point start) {
  summary.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
  if (const auto price = profile.gpu_price_per_hour) {
    summary.cost_usd = *price * summary.wall_s / 3600 * std::max(summary.num_gpus, 1);
  }
  summary.peak_host_memory_gib = metrics::peak_host_memory_gib();
}

struct LargestMicroBatch {
  data::MicroBatchPlan documents;
  std::int64_t num_tokens = 0, step = 0, num_supervised = 0;  ///< num_supervised: of the whole step
};

LargestMicroBatch find_largest(const Run& run) {
  LargestMicroBatch largest;
  for (std::int64_t step = 1; step <= run.plan->total_steps(); ++step) {
    const data::StepPlan plan = run.plan->step(step);
    for (const auto& micro : plan.micro_batches) {
      std::int64_t num_tokens = 0;
      for (const auto document : micro.documents) num_tokens += run.data.train.num_tokens(document);
      if (num_tokens > largest.num_tokens) largest = {micro, num_tokens, step, plan.num_supervised};
    }
  }
  return largest;
}

/// Everything up to step 1 and forward and backward over the largest micro-batch of all steps; writes nothing.
metrics::RunSummary dry_run(const TrainRequest& asked) {
  const OutputDecision decision = look_at_output_folder(asked);
  metrics::RunSummary summary = new_summary(asked);
  if (decision.is_complete) {
    summary.reason = "dry run: the run in " + asked.profile.output_dir + " is complete already";
    return summary;
  }
  TrainRequest request = asked;
  request.profile = decision.profile;
  const auto run = build_run(request, decision.checkpoint);
  const LargestMicroBatch largest = find_largest(*run);
  data::StepPlan plan;
  plan.step = largest.step;
  plan.num_supervised = largest.num_supervised;
  plan.micro_batches = {largest.documents};
  accumulate_gradients(*run->context, plan, build_in_place(run->data.train, plan));
  summary.reason = "dry run: the largest micro-batch (step " + std::to_string(largest.step) + ", " +
                   std::to_string(largest.num_tokens) + " tokens) was computed, nothing was updated or written";
  log_info(summary.reason);
  summary.step = run->state.step;
  summary.total_steps = run->plan->total_steps();
  summary.ledger = summary_ledger(run->data.ledger);
  return summary;
}

}  // namespace

TrainResult run_training(const TrainRequest& asked) {
  const auto start = Clock::now();
  if (asked.profile.max_time) set_max_time(*asked.profile.max_time);
  if (asked.dry_run) {
    metrics::RunSummary summary = dry_run(asked);
    finish_summary(summary, asked.profile, start);
    return {0, metrics::to_json(summary)};
  }
  const fs::path output_dir = asked.profile.output_dir;
  const FolderLock lock(output_dir);
  const OutputDecision decision = prepare_output_folder(asked);
  if (decision.is_complete) {
    log_info(output_dir.string() + ": already complete; nothing was changed");
    return {0, decision.summary_json};
  }
  TrainRequest request = asked;
  request.profile = decision.profile;
  metrics::RunSummary summary = new_summary(request);
  const fs::path log_file = output_dir / "run.log";
  if (!request.overwrite) set_log_file(log_file);  // else once the old one is deleted
  const auto finish = [&] {
    finish_summary(summary, request.profile, start);
    if (holds_done_summary(output_dir)) return;  // of the run that this one did not come to take over
    metrics::write_summary(output_dir / "summary.json", summary);
  };
  try {
    run_in_folder(request, decision, summary);
  } catch (const StopError& error) {  // before step 1: nothing is owed
    summary.status = "stopped";
    summary.reason = error.where();
    summary.exit_code = static_cast<int>(ExitCode::kStopped);
  } catch (...) {
    describe_failure(summary);
    try {
      set_log_file(log_file);
      finish();
    } catch (...) {  // must not hide the error that ended the run
      log_warning("summary.json was not written: " + describe_current_exception().text());
    }
    throw;  // run.log stays open: whoever reports the error reports it there too
  }
  finish();
  set_log_file({});
  return {summary.exit_code, metrics::to_json(summary)};
}

std::vector<EvalResult> run_evaluation(const EvalRequest& request) {
  Profile profile = request.profile;
  const ModelFiles files = open_model(profile);
  check_device(profile, files.config);
  AdapterSetup adapters;
  if (!request.adapter.empty()) {
    adapters = adapters_of_folder(request.adapter, files);
    profile.init_adapter = request.adapter.string();
  }
  profile.lora_dropout = 0;
  const data::PreparedData data = load_data(profile, files, false);
  if (data.evals.empty()) {
    throw ConfigError("eval_datasets", "is empty: there is nothing to evaluate; set eval_datasets or val_set_size");
  }
  LoadedModel model = load_model(profile, files, adapters, false, data.max_seq_len);
  const data::BatchSizes sizes = data::resolve_batch_sizes(profile, data.max_seq_len);
  const std::int64_t rows = profile.eval_micro_batch_size.value_or(sizes.micro);
  const auto activations = plan_activations(profile, *model.decoder, rows * data.max_seq_len, false);
  std::vector<EvalResult> results;
  for (const auto& eval : data.evals) {
    const auto plan = data::plan_evaluation(eval.store, data.max_seq_len, profile.packing, rows);
    results.push_back(evaluate(*model.decoder, *activations, eval, plan));
  }
  return results;
}

}  // namespace lora_train::train
