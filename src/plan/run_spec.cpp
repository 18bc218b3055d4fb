#include "lora_train/plan/run_spec.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/plan/step_time.h"

namespace lora_train::model {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ColumnLayout, gate_up, row_pitch)
}  // namespace lora_train::model

namespace lora_train::plan {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ResumePoint, checkpoint, step, loss_chunk_rows, global_batch_size)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryPlan, weights, quantization, adapter, optimizer, activations, loss_head,
                                   batches, attention, workspaces, tasks, program, host)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunSpec, max_seq_len, micro_batch_size, global_batch_size, eval_micro_batch_size,
                                   max_tokens, recompute, offload_inputs, mlp_tile_tokens, decoded_layers, columns,
                                   attention, windowed_attention, loss_chunk_bytes, algorithms, seed, resume,
                                   memory_bytes, memory)

namespace {

using nlohmann::json;

constexpr std::int64_t kLeastSeqLen = 256;
constexpr std::int64_t kContextBytes = std::int64_t{600} << 20;  // CUDA's, on an otherwise idle GPU
constexpr std::int64_t kHostBytes = std::int64_t{64} << 30;      // page-locked memory that a rank may take
constexpr double kGiB = 1 << 30;
constexpr std::int64_t kGpuMicroBatchTokens = 16384;  // larger ones hardly speed up matrix products

/// Token counts per micro-batch to try on a GPU, largest first; only one if micro_batch_size is given.
std::vector<std::int64_t> token_targets(const RunFacts& facts) {
  if (facts.profile.get().schedule.micro_batch_size) return {kGpuMicroBatchTokens};
  std::vector<std::int64_t> targets;
  const std::int64_t least = facts.max_seq_len;
  for (std::int64_t tokens = std::max(kGpuMicroBatchTokens, least); tokens >= least; tokens /= 2)
    targets.push_back(tokens);
  if (targets.back() != least) targets.push_back(least);
  return targets;
}

/// Sets the batch sizes, with about `tokens` tokens per micro-batch unless the profile gives a size.
void set_sizes(const RunFacts& facts, std::int64_t tokens, RunSpec& spec) {
  ScheduleSection schedule = facts.profile.get().schedule;
  if (schedule.gradient_accumulation_steps && facts.resume.global_batch_size > 0) {
    schedule.gradient_accumulation_steps.reset();
    schedule.global_batch_size = facts.resume.global_batch_size;
  }
  const data::BatchSizes sizes =
      data::resolve_batch_sizes(schedule, facts.max_seq_len, tokens, facts.num_ranks, facts.rows_of_rank);
  spec.micro_batch_size = sizes.micro;
  spec.global_batch_size = sizes.global;
  spec.eval_micro_batch_size = facts.profile.get().schedule.eval_micro_batch_size.value_or(sizes.micro);
  spec.max_tokens = std::max(sizes.micro, facts.has_evaluation ? spec.eval_micro_batch_size : 0) * facts.max_seq_len;
}

/// decoded_layers if memory does not decide it: because nothing is quantised, or the profile gives it or asks for plain
/// weights.
std::optional<std::int64_t> fixed_decoded_layers(const RunFacts& facts) {
  const ModelSection& model = facts.profile.get().model;
  const bool is_plain = model.base_precision != BasePrecision::kAuto && !model.is_quantised();
  if (facts.base.empty() || is_plain) return model::kAllLayers;
  return model.decoded_layers;
}

/// Sets decoded_layers for a quantised base, if all weights may take `weight_bytes`.
void decode_what_fits(const RunFacts& facts, std::int64_t weight_bytes, RunSpec& spec) {
  spec.decoded_layers = fixed_decoded_layers(facts).value_or(0);
  if (fixed_decoded_layers(facts)) return;
  const std::int64_t element_bytes = facts.element_bytes();
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  spec.decoded_layers = model::choose_decoded_layers(facts.config, shape, element_bytes, facts.base, weight_bytes);
  if (facts.is_cuda) spec.memory = plan_memory(facts, spec);
}

/// Values of offload_inputs to try, in this order. A smaller micro-batch, recomputation and tiles come first, because
/// they do not depend on the bus (docs/long_context.md).
std::vector<bool> offload_choices(const RunFacts& facts) {
  switch (facts.profile.get().run.activation_offload) {
    case ActivationOffload::kOn: return {true};
    case ActivationOffload::kOff: return {false};
    case ActivationOffload::kAuto: break;
  }
  return {false, true};
}

/// Tokens per MLP tile to try, in this order; 0 for no tiles. Only full recomputation has tiles.
std::vector<std::int64_t> tile_choices(const RunFacts& facts) {
  const RunSection& run = facts.profile.get().run;
  if (recompute_modes(run.gradient_checkpointing).back() != model::Recompute::kFull) return {0};
  if (run.mlp_tile_tokens || !facts.is_cuda) return {run.mlp_tile_tokens.value_or(0)};
  return {0, auto_mlp_tile_tokens(facts.max_seq_len)};
}

std::vector<model::Recompute> allowed_modes(const RunFacts& facts, const RunSpec& spec) {
  if (spec.mlp_tile_tokens > 0) return {model::Recompute::kFull};
  return recompute_modes(facts.profile.get().run.gradient_checkpointing);
}

/// Plans a micro-batch of the spec's size in `memory_bytes`. Returns false if it does not fit.
bool fit_size(const RunFacts& facts, std::int64_t memory_bytes, RunSpec& spec) {
  const std::vector<model::Recompute> allowed = allowed_modes(facts, spec);
  spec.decoded_layers = fixed_decoded_layers(facts).value_or(0);
  const auto fits = [&] {
    spec.memory = plan_memory(facts, spec);
    return spec.memory.total() <= memory_bytes && spec.memory.host <= facts.host_bytes;
  };
  if (!model::choose_recompute(allowed, fits, spec.recompute)) return false;
  // A GiB of layers decoded once saves more time than one of what kCheap recomputes, and less than one of GEMMs
  // (docs/quantised.md).
  const bool is_cheap = spec.recompute.front() <= model::Recompute::kCheap && allowed.size() > 1;
  if (is_cheap && !facts.base.empty()) std::ranges::fill(spec.recompute, model::Recompute::kCheap);
  fits();
  decode_what_fits(facts, memory_bytes - spec.memory.total() + spec.memory.weights, spec);
  if (is_cheap && !facts.base.empty()) relax_recompute(model::Recompute::kOff, fits, spec.recompute);
  fits();
  return true;
}

/// True if a smaller micro-batch would save nothing: no layer is computed or decoded again.
bool computes_once(const RunFacts& facts, const RunSpec& spec) {
  return spec.recompute.front() == model::Recompute::kOff &&
         (facts.base.empty() || spec.decoded_layers >= facts.config.num_layers);
}

/// Takes the fastest micro-batch by count. One that leaves no slack counts as 1% slower; of those within 1%, takes the
/// one that leaves most memory. If none fits, returns false with the smallest one.
bool take_fastest(const RunFacts& facts, RunSpec& spec) {
  constexpr double kTie = 1.01, kWithoutSlack = 1.01;
  struct Fit {
    double seconds;
    RunSpec spec;
  };
  std::vector<Fit> fits;
  std::int64_t last_size = 0;
  for (const std::int64_t tokens : token_targets(facts)) {
    set_sizes(facts, tokens, spec);
    if (spec.micro_batch_size == std::exchange(last_size, spec.micro_batch_size)) continue;
    const bool has_slack = fit_size(facts, facts.memory_bytes - slack_bytes(facts.memory_bytes), spec);
    if (has_slack) fits.push_back({token_s(facts, spec), spec});
    if (has_slack && computes_once(facts, spec)) break;
    if (has_slack && spec.recompute.front() <= model::Recompute::kCheap)
      continue;  // slack takes a few layers' kOff: below 1%
    if (fit_size(facts, facts.memory_bytes, spec)) fits.push_back({kWithoutSlack * token_s(facts, spec), spec});
  }
  if (fits.empty()) return false;
  const double least_s = std::ranges::min(fits, {}, &Fit::seconds).seconds;
  std::erase_if(fits, [&](const Fit& fit) { return fit.seconds > kTie * least_s; });
  spec = std::ranges::min(fits, {}, [](const Fit& fit) { return fit.spec.memory.total(); }).spec;
  return true;
}

/// Returns false, with the smallest spec, if nothing fits.
bool fit_into_gpu(const RunFacts& facts, RunSpec& spec) {
  for (const std::int64_t chunk_bytes : {model::LossHeadOptions{}.chunk_bytes, kLeastLossChunkBytes}) {
    spec.loss_chunk_bytes = chunk_bytes;
    for (const bool offload : offload_choices(facts)) {
      for (const std::int64_t tile : tile_choices(facts)) {
        spec.offload_inputs = offload;
        spec.mlp_tile_tokens = tile;
        if (take_fastest(facts, spec)) return true;
      }
    }
  }
  return false;
}

[[noreturn]] void refuse_memory(const RunFacts& facts, RunSpec spec) {
  if (spec.offload_inputs && spec.memory.host > facts.host_bytes) {
    if (facts.profile.get().run.activation_offload == ActivationOffload::kOn) {
      throw DeviceError("out of host memory before step 1",
                        "activation_offload: on needs {} of page-locked memory, but only {} may be used, half of what "
                        "is free. Lower micro_batch_size or max_seq_len, or set activation_offload: auto",
                        format_bytes(spec.memory.host), format_bytes(facts.host_bytes));
    }
    spec.offload_inputs = false;
  }
  const MemoryPlan plan = plan_memory(facts, spec);
  throw DeviceError("out of GPU memory before step 1",
                    "a micro-batch of {} x {} tokens needs {}, but only {} is available: {} short. Needed for: {}. To "
                    "fit, {}",
                    std::max(spec.micro_batch_size, spec.eval_micro_batch_size), facts.max_seq_len,
                    format_bytes(plan.total()), format_bytes(facts.memory_bytes),
                    format_bytes(plan.total() - facts.memory_bytes), plan.describe(), ways_on(facts));
}

void fit_into_host(const RunFacts& facts, RunSpec& spec) {
  set_sizes(facts, facts.auto_tokens, spec);
  decode_what_fits(facts, facts.memory_bytes, spec);
  spec.offload_inputs = facts.profile.get().run.activation_offload == ActivationOffload::kOn;
  spec.mlp_tile_tokens = tile_choices(facts).front();
  const model::ActivationOptions options = activation_options(spec);
  const std::int64_t element_bytes = facts.element_bytes();
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  const auto fits = [&] {
    const model::ActivationPlan plan = model::plan_activations(shape, options, spec.recompute);
    return plan.bytes(element_bytes) + plan.host_bytes(element_bytes) <= facts.memory_bytes;
  };
  model::choose_recompute(allowed_modes(facts, spec), fits, spec.recompute);
}

/// A key with which the profile decides what the planner would decide.
struct PinnedKey {
  std::string key;  ///< "micro_batch_size: 8"
  std::string way;  ///< "micro_batch_size: auto"
  std::function<void(Profile&)> release;
};

std::vector<PinnedKey> pinned_keys(const RunFacts& facts) {
  const Profile& profile = facts.profile;
  const ScheduleSection& schedule = profile.schedule;
  std::vector<PinnedKey> pinned;
  const auto add = [&](const char* key, bool is_pinned, const auto& value, void (*release)(Profile&)) {
    if (is_pinned) pinned.push_back({fmt::format("{}: {}", key, value), std::string(key) + ": auto", release});
  };
  add("micro_batch_size", schedule.micro_batch_size.has_value(), schedule.micro_batch_size.value_or(0),
      [](Profile& p) { p.schedule.micro_batch_size.reset(); });
  if (schedule.micro_batch_size && schedule.gradient_accumulation_steps) {  // a step keeps its rows
    const std::int64_t rows = *schedule.micro_batch_size * *schedule.gradient_accumulation_steps * facts.num_ranks;
    pinned.back().way += fmt::format(" with global_batch_size: {} instead of gradient_accumulation_steps", rows);
    pinned.back().release = [rows](Profile& p) {
      p.schedule.micro_batch_size.reset();
      p.schedule.gradient_accumulation_steps.reset();
      p.schedule.global_batch_size = rows;
    };
  }
  const RunSection& run = profile.run;
  add("gradient_checkpointing", run.gradient_checkpointing != GradientCheckpointing::kAuto,
      to_string(run.gradient_checkpointing),
      [](Profile& p) { p.run.gradient_checkpointing = GradientCheckpointing::kAuto; });
  add("activation_offload", run.activation_offload != ActivationOffload::kAuto, to_string(run.activation_offload),
      [](Profile& p) { p.run.activation_offload = ActivationOffload::kAuto; });
  add("mlp_tile_tokens", run.mlp_tile_tokens.has_value(), run.mlp_tile_tokens.value_or(0),
      [](Profile& p) { p.run.mlp_tile_tokens.reset(); });
  add("decoded_layers", profile.model.decoded_layers.has_value(), profile.model.decoded_layers.value_or(0),
      [](Profile& p) { p.model.decoded_layers.reset(); });
  return pinned;
}

/// What a spec does more than once per micro-batch or moves over the bus.
std::array<std::int64_t, 4> extra_work(const RunFacts& facts, const RunSpec& spec) {
  const std::int64_t num_layers = std::ssize(spec.recompute);
  const std::int64_t num_decoded_again =
      facts.base.empty() ? 0 : num_layers - std::min(num_layers, spec.decoded_layers);
  return {static_cast<std::int64_t>(spec.recompute.front()), num_decoded_again, spec.offload_inputs ? 1 : 0,
          spec.mlp_tile_tokens > 0 ? 1 : 0};
}

/// Returns false if the memory of a GPU is too small.
bool fit(const RunFacts& facts, RunSpec& spec) {
  const Profile& profile = facts.profile;
  spec.max_seq_len = facts.max_seq_len;
  spec.memory_bytes = facts.memory_bytes;
  spec.recompute.resize(static_cast<std::size_t>(facts.config.num_layers));
  spec.seed = static_cast<std::uint64_t>(profile.run.seed);
  spec.resume = facts.resume;
  spec.algorithms = facts.algorithms;
  spec.attention = spec.windowed_attention = attention_backend(profile.run.attn_implementation);
  spec.columns.gate_up = facts.gate_up.value_or(facts.is_cuda ? gate_up_on_gpu(facts) : spec.columns.gate_up);
  if (facts.is_cuda) return fit_into_gpu(facts, spec);
  fit_into_host(facts, spec);
  return true;
}

}  // namespace

model::ActivationOptions activation_options(const RunSpec& spec) {
  return {
      .max_tokens = spec.max_tokens, .offload_inputs = spec.offload_inputs, .mlp_tile_tokens = spec.mlp_tile_tokens};
}

model::GradientColumns gate_up_on_gpu(const RunFacts& facts) {
  const bool is_one_kernel = facts.profile.get().model.precision == Precision::kBf16 &&
                             std::all_of(facts.adapters.begin(), facts.adapters.end(),
                                         [](const auto& adapter) { return adapter.rank <= kernels::kMaxRanksWithDs; });
  return is_one_kernel ? model::GradientColumns::kBesideOutput : model::GradientColumns::kBesideInput;
}

bool pad_rows(const RunFacts& facts, RunSpec& spec) {
  RunSpec padded = spec;
  padded.columns.row_pitch = model::RowPitch::kPadded;
  if (facts.is_cuda) padded.memory = plan_memory(facts, padded);
  if (padded.memory.total() > facts.memory_bytes - slack_bytes(facts.memory_bytes)) return false;
  spec = padded;
  return true;
}

void set_loss_chunk(const RunFacts& facts, std::int64_t bytes, RunSpec& spec) {
  spec.loss_chunk_bytes = bytes;
  if (facts.is_cuda) spec.memory = plan_memory(facts, spec);
}

RunSpec decide(const RunFacts& facts) {
  RunSpec spec;
  if (!fit(facts, spec)) refuse_memory(facts, spec);
  return spec;
}

std::optional<RunSpec> decide_if_fits(const RunFacts& facts) {
  RunSpec spec;
  return fit(facts, spec) ? std::optional(spec) : std::nullopt;
}

std::string to_json(const RunSpec& spec) { return json(spec).dump(-1, ' ', false, json::error_handler_t::replace); }

RunSpec parse_run_spec(const std::string& text) { return json::parse(text).get<RunSpec>(); }

std::vector<std::string> ways_to_fit(const RunFacts& facts) {
  std::vector<std::string> ways, changes;
  const auto try_changes = [&](const RunFacts& changed, const std::vector<std::string>& made) {
    if (decide_if_fits(changed)) ways.push_back(join(made, " with "));
  };
  Profile profile = facts.profile;  // with all changes so far
  RunFacts changed = with_profile(facts, profile);
  for (const PinnedKey& pinned : pinned_keys(facts)) {
    Profile alone = facts.profile;
    pinned.release(alone);
    try_changes(with_profile(facts, alone), {pinned.way});
    pinned.release(profile);
    changes.push_back(pinned.way);
  }
  if (ways.empty() && changes.size() > 1) try_changes(changed, changes);
  if (ways.empty() && profile.model.precision == Precision::kFp32) {
    profile.model.precision = Precision::kBf16;
    changes.emplace_back("precision: bf16");
    try_changes(changed, changes);
  }
  if (ways.empty() && facts.base.empty() && !facts.adapters.empty()) {
    profile.model.base_precision = BasePrecision::kNf4;
    changed.base = base_storage(profile.model, facts.config);
    changes.emplace_back("base_precision: nf4");
    try_changes(changed, changes);
  }
  changes.emplace_back();
  for (changed.max_seq_len /= 2; changed.max_seq_len >= kLeastSeqLen && ways.empty(); changed.max_seq_len /= 2) {
    changes.back() = fmt::format("max_seq_len: {}", changed.max_seq_len);
    try_changes(changed, changes);
  }
  return ways;
}

std::string ways_on(const RunFacts& facts) {
  if (decide_if_fits(facts)) return "start the run again: it then plans for this memory";
  const std::vector<std::string> ways = ways_to_fit(facts);
  if (ways.empty()) return "no key can change that; use a smaller model or a GPU with more memory";
  return "use " + join(ways, ", or ");
}

std::vector<std::string> slower_keys(const RunFacts& facts, const RunSpec& spec) {
  std::vector<std::string> lines;
  if (!facts.is_cuda) return lines;
  const Profile& given = facts.profile;
  std::vector<PinnedKey> pinned = pinned_keys(facts);
  if (given.model.is_quantised()) {
    pinned.push_back({"base_precision: " + to_string(given.model.base_precision), "", [](Profile& p) {
                        p.model.base_precision = BasePrecision::kAuto;
                        p.model.decoded_layers.reset();
                      }});
  }
  for (const PinnedKey& key : pinned) {
    Profile profile = given;
    key.release(profile);
    profile.schedule.micro_batch_size = spec.micro_batch_size;
    RunFacts other = with_profile(facts, profile);
    other.resume = {};
    other.algorithms.clear();
    if (profile.model.base_precision != given.model.base_precision) other.base.clear();
    const auto without = decide_if_fits(other);  // nothing: the key is needed
    if (!without || without->loss_chunk_bytes < spec.loss_chunk_bytes) continue;
    const auto work = extra_work(facts, spec), less = extra_work(other, *without);
    if (less == work || !std::ranges::equal(less, work, std::less_equal())) continue;
    lines.push_back(
        fmt::format("{} costs time for nothing: with it, the run recomputes, decodes or moves more, and needs {}; "
                    "without it, {} of "
                    "{}. Leave it out",
                    key.key, format_bytes(spec.memory.total()), format_bytes(without->memory.total()),
                    format_bytes(facts.memory_bytes)));
  }
  return lines;
}

RunFacts facts_on(const RunFacts& facts, const device::GpuFacts& gpu) {
  RunFacts there = facts;
  const auto total = static_cast<std::int64_t>(gpu.memory_gib * kGiB);
  there.is_cuda = true;
  there.memory_bytes = memory_budget(total, total - kContextBytes);
  there.host_bytes = kHostBytes;
  there.num_multiprocessors = gpu.num_multiprocessors;
  there.algorithms.clear();
  return there;
}

RunSpec decide_smallest(const RunFacts& facts) {
  Profile profile = facts.profile;
  if (!profile.schedule.micro_batch_size) profile.schedule.micro_batch_size = 1;
  if (profile.run.gradient_checkpointing == GradientCheckpointing::kAuto)
    profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  if (!profile.model.decoded_layers) profile.model.decoded_layers = 0;
  RunFacts unlimited = with_profile(facts, profile);
  unlimited.memory_bytes = unlimited.host_bytes = std::numeric_limits<std::int64_t>::max() / 2;
  return decide(unlimited);
}

Profile with_least_memory(Profile profile) {
  profile.schedule.micro_batch_size = profile.schedule.eval_micro_batch_size = 1;
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  profile.run.activation_offload = ActivationOffload::kAuto;
  profile.run.mlp_tile_tokens.reset();
  profile.model.decoded_layers = 0;
  return profile;
}

std::int64_t least_bytes(const RunFacts& facts) {
  const Profile profile = with_least_memory(facts.profile);
  const RunFacts least = with_profile(facts, profile);
  RunSpec spec = decide_smallest(least);
  spec.loss_chunk_bytes = kLeastLossChunkBytes;
  std::int64_t bytes = spec.memory.total();
  for (const bool offloads : {false, true}) {
    for (const std::int64_t tile : {std::int64_t{0}, auto_mlp_tile_tokens(facts.max_seq_len)}) {
      spec.offload_inputs = offloads;
      spec.mlp_tile_tokens = tile;
      const MemoryPlan plan = plan_memory(least, spec);
      if (plan.host <= facts.host_bytes) bytes = std::min(bytes, plan.total());
    }
  }
  return bytes;
}

std::string misfit(const RunFacts& facts, const device::GpuFacts& gpu) {
  const RunFacts there = facts_on(facts, gpu);
  if (decide_if_fits(there)) return {};
  return fmt::format("the run needs {}, but one {} may use {}: {}", format_bytes(decide_smallest(there).memory.total()),
                     gpu.name, format_bytes(there.memory_bytes), ways_on(there));
}

}  // namespace lora_train::plan
