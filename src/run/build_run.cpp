#include "lora_train/run/build_run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "evaluation_schedule.h"
#include "log_lines.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/run_spec.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/tuning/tuning_cases.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/run/background_saver.h"
#include "lora_train/run/rehearsal.h"
#include "lora_train/run/run_costs.h"
#include "lora_train/run/train_step.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "rank_agreement.h"

namespace lora_train::run {
namespace {

/// Keys that enter the data fingerprint, which cannot tell which of them changed.
constexpr const char* kDataKeys[] = {"datasets",        "model",      "chat_template", "loss_on",
                                     "max_seq_len",     "overlength", "on_bad_row",    "val_set_size",
                                     "drop_duplicates", "seed",       "thinking"};

bool is_allowed(const OpenedRun& run, const char* key) {
  return std::ranges::count(run.request.allow_changed, key) > 0;
}

/// Throws unless the inputs are those that the checkpoint was trained on. run_folder/output_folder compares the
/// profile, key by key.
void refuse_other_inputs(const Run& run, const std::filesystem::path& checkpoint, const run_folder::Fingerprints& old) {
  const run_folder::Fingerprints& now = run.checkpoint.fingerprints;
  const auto refuse = [&](const std::string& what, const char* key) {
    throw ConfigError(checkpoint.string(), "was trained with " + what + " Restore it, or use --allow-changed " + key +
                                               ", --overwrite or another --output-dir");
  };
  if (old.model != now.model && !is_allowed(run, "model")) {
    refuse(fmt::format("a different base model: config.json or the weights in {} have changed.",
                       run.files.resolved.folder.string()),
           "model");
  }
  if (old.tokenizer != now.tokenizer && !is_allowed(run, "model"))
    refuse("a different tokenizer: its files have changed.", "model");
  if (old.chat_template != now.chat_template && !is_allowed(run, "chat_template"))
    refuse("a different chat template: its text has changed.", "chat_template");
  const bool may_data_differ = std::ranges::any_of(kDataKeys, [&](const char* key) { return is_allowed(run, key); });
  if (old.data != now.data && !may_data_differ) {
    refuse("different data: the files of datasets, or options that decide the tokens, have changed.", "datasets");
  }
}

/// Refuses a run that would save its checkpoints where other programs keep theirs.
void refuse_checkpoints_in_the_way(const std::filesystem::path& output_dir, std::int64_t first_step,
                                   std::int64_t last_step) {
  for (const auto& path : run_folder::list_others(output_dir)) {
    const auto step = storage::checkpoint_step(path);
    if (step < first_step || step > last_step) continue;
    throw ConfigError(path.string(),
                      "was not written by lora-train, and this run of {} steps may save a checkpoint under that name. "
                      "Move it, or choose another output_dir",
                      last_step);
  }
}

void resume(Run& run, const std::filesystem::path& checkpoint, const run_folder::Description& found) {
  refuse_other_inputs(run, checkpoint, found.fingerprints);
  if (found.state.step > run.plan->total_steps()) {
    throw ConfigError(run.profile().schedule.max_steps ? "max_steps" : "num_epochs",
                      "ends the run after step {}, but {} was saved at step {}. Raise it, or resume from an earlier "
                      "checkpoint",
                      run.plan->total_steps(), checkpoint.string(), found.state.step);
  }
  if (found.state.step == run.plan->total_steps() && found.fingerprints.model != run.checkpoint.fingerprints.model) {
    throw ConfigError(
        checkpoint.string(),
        "is the last step and was trained on another base model; with no steps left to train on this one, the result "
        "would name the wrong base. Raise num_epochs or max_steps, or use the original model");
  }
  if (run.is_leader())
    load_checkpoint_tensors(checkpoint, !run.adapters.specs.empty(), *run.model.parameters, *run.optimizer);
  share_parameters(run);
  run.model.weights->refresh();
  run.state = found.state;
  if (!share_best(run)) forget_best(run.state);
  log_info("resumed from {} after step {}", checkpoint.string(), run.state.step);
  if (found.world_size != run.checkpoint.world_size) {  // the documents of a step do not depend on it
    log_info("it was saved by {} ranks; the run continues with {}, and a step keeps its {} {}", found.world_size,
             run.checkpoint.world_size, run.spec.global_batch_size, to_string(run.profile().schedule.batch_unit));
  }
}

/// Replaces the `auto` values that start, data and device decide, as profile.yaml shows them.
Profile with_numbers(const Run& run) {
  Profile profile = run.profile();
  if (const std::string& day = run.files.trained_with.template_date; !day.empty()) profile.model.template_date = day;
  profile.data.max_seq_len = run.spec.max_seq_len;
  if (!profile.schedule.micro_batch_size) profile.schedule.micro_batch_size = run.spec.micro_batch_size;
  profile.run.mlp_tile_tokens = run.spec.mlp_tile_tokens;
  return profile;
}

run_folder::Contents checkpoint_contents(const Run& run) {
  run_folder::Contents contents;
  contents.total_steps = run.plan->total_steps();
  contents.world_size = run.ranks().world_size();
  contents.num_epochs = run.profile().schedule.num_epochs.value_or(0);
  const lora::ModelFiles& files = run.files;
  contents.fingerprints = {run.data.fingerprint, files.tokenizer ? files.tokenizer->fingerprint() : "",
                           files.chat_template ? files.chat_template->fingerprint() : "", run.model.fingerprint,
                           run.request.profile_hash};
  contents.profile_yaml = to_yaml(with_numbers(run));
  contents.trained_with_json = lora::to_json(files.trained_with);
  return contents;
}

// A frozen row that was never trained stays untrained, and the model cannot learn to stop.
void check_stop_token_row(Run& run) {
  const auto id = run.data.stop_token_id;
  if (!id || run.profile().adapter.kind == AdapterKind::kNone || *id >= run.files.config.vocab_size) return;
  if (std::ranges::count(run.adapters.config.token_rows.embedding, *id) > 0) return;
  const std::int64_t num_tokens =
      std::min<std::int64_t>(run.files.tokenizer->vocab_size(), run.files.config.vocab_size);
  if (const auto seen =
          looks_untrained(run.model.weights->acquire_outer(model::Pass::kForward).embedding, *id, num_tokens)) {
    log_warning(
        "the embedding of {} (id {}), which ends a turn, looks untrained ({}), and LoRA does not change it, so the "
        "model may never learn to stop. Start from the instruct model, or train all weights (adapter: none)",
        run.files.tokenizer->id_to_token(*id), *id, *seen);
  }
}

std::vector<std::string> paths_with_dropout(const Run& run) {
  std::vector<std::string> paths;
  if (run.profile().adapter.lora_dropout == 0) return paths;
  for (const auto& spec : run.adapters.specs) paths.push_back(model::linear_path(spec));
  return paths;
}

/// Tokens of each document in the largest micro-batch.
std::vector<std::int64_t> lengths_of_largest(Run& run) {
  std::vector<std::int64_t> lengths;
  for (const auto document : largest_micro_batch(run).plan.micro_batches.front().documents)
    lengths.push_back(run.data.train.num_tokens(document));
  return lengths;
}

void log_memory_plan(const plan::RunSpec& spec) {
  log_info("GPU memory planned: {} ({}){}", format_bytes(spec.memory.total()), spec.memory.describe(),
           spec.memory.host > 0 ? "; page-locked host memory: " + format_bytes(spec.memory.host) : "");
}

/// The average number of supervised tokens in a micro-batch.
std::int64_t mean_supervised(Run& run) {
  const auto tokens = static_cast<double>(std::max<std::int64_t>(run.data.train.total_tokens(), 1));
  const double share = static_cast<double>(run.data.train.total_supervised()) / tokens;
  return std::max<std::int64_t>(1, std::llround(share * static_cast<double>(largest_micro_batch(run).num_tokens)));
}

/// The host memory that a plan may use: half of what is available to this process.
std::int64_t host_bytes(const OpenedRun& run) {
  return report::available_host_memory() / 2 / std::max(1, run.request.world.local_size);
}

/// Chooses device and price of the run.
void start_device(OpenedRun& run, const std::shared_ptr<ranks::Communicator>& ranks) {
  const RunSection& section = run.profile().run;
  run.device = plan::start_device(run.profile(), run.files.config, run.request.world, ranks);
  if (run.device.is_cuda()) run.resources->watch_gpu(run.device.uuid);
  run.clock->set_usage([resources = run.resources] { return resources->of_all_ranks(); });
  run.max_steps_in_flight = run.device.is_cuda() ? kMaxStepsInFlight : 0;
  run.clock->set_price(run.device.is_cuda() ? find_price(section.gpu_price_per_hour, run.device.name,
                                                         run.ranks().world_size(), run.request.gpu_table)
                                            : find_price(section.gpu_price_per_hour, "", 1, {}));
}

plan::RunFacts gather_facts(const OpenedRun& run) {
  plan::RunFacts facts{run.profile(), run.files.config, run.adapters.specs, run.data.max_seq_len,
                       !run.data.evals.empty()};
  facts.has_token_weights = run.data.has_weights();
  facts.soft_width = run.data.train.soft_width();
  facts.task_bytes = run.tasks ? run.tasks->least_bytes(run.profile(), run.files) : 0;
  facts.rows_of_rank = data::count_rows_of_rank(run.profile(), run.data, run.ranks().world_size());
  facts.is_cuda = run.device.is_cuda();
  facts.host_bytes = host_bytes(run);
  facts.memory_bytes = facts.is_cuda ? plan::memory_budget(run.device) : facts.host_bytes;
  facts.num_multiprocessors = run.device.num_multiprocessors;
  facts.base = run.files.base;
  facts.token_rows = run.adapters.config.token_rows;
  return facts;
}

/// Takes in the facts of all ranks and the decisions of the checkpoint: a resumed run keeps its loss chunks, its
/// algorithms and, unless their key may change, the rows of a step.
void settle_facts(Run& run) {
  plan::RunFacts& facts = run.facts;
  share_facts(run.ranks(), facts);
  if (!run.resumed) return;
  const Profile& profile = run.profile();
  const run_folder::TrainState& old = run.resumed->state;
  const bool keeps_batch = !is_allowed(run, "gradient_accumulation_steps") && !is_allowed(run, "micro_batch_size");
  facts.resume = {run.checkpoint_folder->string(), old.step, old.loss_chunk_rows,
                  keeps_batch ? old.global_batch_size : 0};
  facts.algorithms = old.tuning;
  if (facts.resume.global_batch_size == 0 || !profile.schedule.gradient_accumulation_steps) return;
  Profile kept = profile;
  kept.schedule.gradient_accumulation_steps.reset();
  kept.schedule.global_batch_size = old.global_batch_size;
  facts.rows_of_rank = data::count_rows_of_rank(kept, run.data, run.ranks().world_size());
}

/// On a CPU: if the plan needs more than is free, recomputes more and decodes fewer layers once; throws DeviceError if
/// even that needs more.
void fit_into_free_memory(Run& run) {
  const std::int64_t free = 2 * host_bytes(run), tokens = largest_micro_batch(run).num_tokens;
  plan::RunFacts facts = run.facts;
  plan::RunSpec spec;
  const auto plan_with = [&](const Profile& profile, const model::BaseStorage& base) {
    plan::RunFacts other = plan::with_profile(facts, profile);
    other.base = base;
    other.max_seq_len = profile.data.max_seq_len.value_or(facts.max_seq_len);
    spec = plan::decide(other);
    plan::MemoryPlan plan = plan::plan_host(other, spec, {std::min(tokens, spec.max_tokens), mean_supervised(run)});
    plan.program = 0;  // runs already; without room for its copy, a checkpoint is written from the parameters
    return plan;
  };
  while (facts.memory_bytes > 0 && plan_with(run.profile(), facts.base).total() > free) facts.memory_bytes /= 2;
  plan::require_host_memory(run.profile(), facts.config, facts.base, free, facts.max_seq_len, plan_with);
  run.spec.recompute = spec.recompute;
  run.spec.decoded_layers = spec.decoded_layers;
}

}  // namespace

void tune_spec(Run& run) {
  plan::RunSpec& spec = run.spec;
  const plan::MemoryPlan planned = spec.memory;
  const at::Tensor& head = run.model.weights->acquire_outer(model::Pass::kForward).head;
  auto chunk_bytes = plan::kept_loss_chunk(head, spec.resume.loss_chunk_rows, spec.spare_bytes());
  const std::int64_t spare_bytes = std::max<std::int64_t>(0, spec.spare_bytes() - plan::slack_bytes(spec.memory_bytes));
  const bool is_kept = chunk_bytes.has_value();
  const bool is_least = spec.loss_chunk_bytes < model::LossHeadOptions{}.chunk_bytes;  // nothing larger fits
  if (!is_kept && !is_least && run.device.is_cuda())
    chunk_bytes = plan::loss_chunk_by_count(head, mean_supervised(run), spare_bytes, run.device.num_multiprocessors);
  if (run.tuning) {
    kernels::Tuner& tuner = run.tuning->tuner();
    try {
      if (run.profile().run.attn_implementation == AttnImplementation::kAuto) {
        const auto chosen = plan::tune_attention(tuner, *run.model.decoder, lengths_of_largest(run), run.device.device);
        spec.attention = chosen.full;
        spec.windowed_attention = chosen.windowed;
      }
      const auto measured =
          is_kept || is_least ? chunk_bytes : plan::tune_loss_chunk(tuner, head, mean_supervised(run), spare_bytes);
      if (measured) chunk_bytes = measured;
    } catch (const c10::OutOfMemoryError& error) {
      log_info(std::string("tuning: not enough memory to measure, using defaults: ") + error.what_without_backtrace());
    }
  }
  if (chunk_bytes) plan::set_loss_chunk(run.facts, *chunk_bytes, spec);
  if (spec.memory != planned) log_memory_plan(spec);
}

void decide_spec(Run& run, std::optional<model::RowPitch> row_pitch) {
  plan::RunSpec& spec = run.spec;
  if (run.is_leader()) {
    spec = plan::decide(run.facts);
    if (!run.tuning) run.tuning = plan::start_tuning(run.profile().run, run.device, spec.algorithms);
  }
  if (!row_pitch && run.tuning) {
    try {
      row_pitch = plan::tune_row_pitch(run.tuning->tuner(), run.files.config, run.adapters.specs, spec.max_tokens,
                                       plan::compute_dtype(run.profile().model.precision), run.device.device);
    } catch (const c10::OutOfMemoryError& error) {
      log_info(std::string("tuning: not enough memory to measure the row pitch, so rows stay exact: ") +
               error.what_without_backtrace());
    }
    plan::release_unused_memory(run.device);
  }
  if (row_pitch == model::RowPitch::kPadded && !plan::pad_rows(run.facts, spec))
    log_info("rows with adapter columns stay exact: not enough memory to pad them");
  share_spec(run.ranks(), spec);
  run.adapters.columns = spec.columns;
}

void allocate(Run& run) {
  plan::release_unused_memory(run.device);
  run.startup_memory = plan::device_memory(run.device);
  plan::reset_peak_memory(run.device);
  const Profile& profile = run.profile();
  const plan::RunSpec& spec = run.spec;
  model::Decoder& decoder = *run.model.decoder;
  const std::int64_t max_tokens = spec.max_tokens;
  decoder.attention = spec.attention;
  decoder.windowed_attention = spec.windowed_attention;
  run.activations = std::make_unique<model::Activations>(decoder.shape, plan::activation_options(spec), spec.recompute,
                                                         decoder.dtype, run.model.parameters->values.device());
  run.loss_head = plan::plan_loss_head(decoder, max_tokens, true, spec.loss_chunk_bytes, run.data.has_weights());
  const Objective& objective = objective_for(profile.objective.loss_type);
  if (objective.enqueue_loss_chunk != nullptr && (run.device.is_cuda() || kernels::can_capture())) {
    const std::vector<data::BatchShape> shapes = data::batch_shapes(run.data.train, *run.plan);
    run.batch_classes = data::choose_batch_classes(shapes, max_tokens);
    for (const auto& shape : shapes) {
      run.num_micro_batches += shape.count;
      if (data::find_batch_class(run.batch_classes, shape) < 0) run.num_unpadded += shape.count;
    }
  }
  std::vector<data::BatchClass> eval_classes;
  if (run.device.is_cuda())
    eval_classes = data::choose_batch_classes(data::batch_shapes(run.data.evals, run.eval_plans), max_tokens);
  run.feed = std::make_unique<plan::BatchFeed>(
      run.device, plan::BatchFeedOptions{max_tokens, profile.data.dataloader_pin_memory,
                                         profile.adapter.lora_dropout > 0, decoder.first_needed.embedding,
                                         run.batch_classes, run.loss_head->chunk_rows(), run.data.has_weights(),
                                         run.data.train.soft_width(), eval_classes, decoder.config.is_hybrid()});
  const std::vector<std::string> dropout_paths = paths_with_dropout(run);
  run.scalars = std::make_unique<StepScalars>(run.device, std::ssize(dropout_paths), run.ranks().world_size());
  run.ranks().set_abort_flag(run.scalars->device()[optim::kNonFinite]);
  const model::Trainables& parameters = *run.model.parameters;
  run.optimizer.emplace(optim::optimizer_for(profile.optimizer.kind), parameters.blocks(), parameters.values.device());
  run.context = std::make_unique<StepContext>(
      StepContext{run.data.train, *run.model.decoder, *run.model.parameters, *run.model.weights, *run.activations,
                  *run.loss_head, *run.feed, *run.scalars, *run.optimizer, run.device.ranks.get(), profile.objective,
                  optim::make_lr_schedule(profile.optimizer.learning_rate, profile.schedule, spec.global_batch_size,
                                          run.plan->total_steps()),
                  optim::adamw_options(profile.optimizer), profile.optimizer.max_grad_norm, spec.seed, dropout_paths,
                  make_token_buffers(objective, max_tokens, parameters.values.device())});
}

plan::LoadOptions load_options(const Run& run) {
  return {run.profile().adapter.kind == AdapterKind::kNone, run.data.max_seq_len, run.spec.decoded_layers};
}

void build_from_facts(Run& run) {
  const Profile& profile = run.profile();
  decide_spec(run);
  if (run.tuning) run.end_phase("tuning", report::Phase::kTune);
  if (run.device.is_cuda()) log_memory_plan(run.spec);
  for (const std::string& line : plan::slower_keys(run.facts, run.spec)) log_info(line);
  run.plan = std::make_unique<data::RunPlan>(
      data::plan_run(profile, run.data, run.spec.sizes(), {run.ranks().rank(), run.ranks().world_size()}));
  const std::int64_t step = run.resumed ? run.resumed->state.step : 0;
  if (run.is_leader()) refuse_checkpoints_in_the_way(profile.run.output_dir, step, run.plan->total_steps());
  run.eval_plans.clear();
  for (const auto& eval : run.data.evals)
    run.eval_plans.push_back(
        data::plan_evaluation(eval.store, run.data.max_seq_len, profile.data.packing, run.spec.eval_micro_batch_size));
  run.end_phase("plan", report::Phase::kData);
  if (run.is_leader() && !run.device.is_cuda()) fit_into_free_memory(run);
  share_spec(run.ranks(), run.spec);
  plan::load_model(profile, run.device, run.files, run.adapters, load_options(run), run.model);
  run.adapters.config.base_weights = run.model.weights_fingerprint;
  check_stop_token_row(run);
  run.end_phase("weights", report::Phase::kLoad);
  if (run.is_leader()) tune_spec(run);
  share_spec(run.ranks(), run.spec);
  if (run.tuning) run.end_phase("tuning", report::Phase::kTune);
  allocate(run);
  run.checkpoint = checkpoint_contents(run);
  check_equal_runs(run);
  if (run.resumed) resume(run, run.facts.resume.checkpoint, *run.resumed);
  check_equal_parameters(run);
  run.state.loss_chunk_rows = run.loss_head->chunk_rows();
  run.state.global_batch_size = run.spec.global_batch_size;
}

namespace {

lora::ModelFiles open_inputs(const Profile& profile, std::int64_t started_at) {
  ModelSection section = profile.model;
  if (section.template_date.empty()) section.template_date = local_day(started_at);
  lora::ModelFiles files = lora::open_model_and_weights(section, profile.adapter.init_adapter);
  if (files.chat_template) files.trained_with.template_date = files.chat_template->day();
  if (files.trained_with.template_date.empty() && !profile.model.template_date.empty())
    log_warning("template_date: has no effect, because the chat template does not write the date");
  files.trained_with.precision = section.precision;
  if (section.is_quantised()) files.trained_with.base_precision = section.base_precision;
  files.trained_with.double_quant = section.double_quant;
  return files;
}

}  // namespace

OpenedRun open_run(const TrainRequest& request, const std::shared_ptr<ranks::Communicator>& ranks,
                   const std::shared_ptr<report::RunClock>& clock,
                   const std::optional<std::filesystem::path>& checkpoint) {
  OpenedRun run(request);
  run.clock = clock;
  const Profile& profile = request.profile;
  run.checkpoint_folder = checkpoint;
  if (checkpoint) run.resumed = share_description(*ranks, *checkpoint);
  run.started_at =
      run.resumed ? run.resumed->state.started_at : share_start(*ranks, static_cast<std::int64_t>(std::time(nullptr)));
  run.files = open_inputs(profile, run.started_at);
  if (!run.resumed && !profile.adapter.init_adapter.empty())
    lora::check_base(profile.adapter.init_adapter, run.files.resolved,
                     {is_allowed(run, "model"), "--allow-changed model"});
  run.end_phase("open model", report::Phase::kLoad);
  start_device(run, ranks);
  run.adapters = plan::choose_adapters(profile, run.files);
  check_equal_starts(run);
  connect_gpus(run);
  log_device_and_model(run);
  run.end_phase("device", report::Phase::kLoad);
  {
    // Loading the weights needs the plan, which needs the data. Until then, only the disk can work ahead.
    const storage::ReadAhead weights(run.files.resolved.folder, host_bytes(run));
    run.data = data::prepare_data(profile.data, plan::data_context(profile, run.files), true);
    run.files.trained_with.prompts = run.data.has_chats ? "chat" : run.data.has_texts ? "raw" : "";
    run.tasks.emplace(profile, run.files);
  }
  run.end_phase("data", report::Phase::kData);
  throw_if_stop_requested();
  return run;
}

Run::Run(OpenedRun&& opened, const std::function<void(Run&)>& build)
    : OpenedRun(std::move(opened)), facts(gather_facts(*this)) {
  state.started_at = started_at;
  build(*this);
}

Run build_run(const TrainRequest& request, const std::shared_ptr<ranks::Communicator>& ranks,
              const std::shared_ptr<report::RunClock>& clock, const std::optional<std::filesystem::path>& checkpoint) {
  return Run(open_run(request, ranks, clock, checkpoint), [](Run& run) {
    settle_facts(run);
    if (run.is_leader()) warn_of_target_gpu(run);
    build_from_facts(run);
    log_start(run);
    run.end_phase("buffers", report::Phase::kLoad);
  });
}

}  // namespace lora_train::run
