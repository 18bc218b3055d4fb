#include "lora_train/plan/run_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/plan/step_time.h"

namespace lora_train::plan {
namespace {

using nlohmann::json;

constexpr std::int64_t kGpuMicroBatchTokens = 16384;  // larger ones hardly speed up matrix products

/// Token counts per micro-batch to try on a GPU, largest first; only one if micro_batch_size is given.
std::vector<std::int64_t> token_targets(const RunFacts& facts) {
  if (facts.profile.schedule.micro_batch_size) return {kGpuMicroBatchTokens};
  std::vector<std::int64_t> targets;
  const std::int64_t least = facts.max_seq_len;
  for (std::int64_t tokens = std::max(kGpuMicroBatchTokens, least); tokens >= least; tokens /= 2)
    targets.push_back(tokens);
  if (targets.back() != least) targets.push_back(least);
  return targets;
}

/// Sets the batch sizes, with about `tokens` tokens per micro-batch unless the profile gives a size.
void set_sizes(const RunFacts& facts, std::int64_t tokens, RunSpec& spec) {
  ScheduleSection schedule = facts.profile.schedule;
  if (schedule.gradient_accumulation_steps && facts.resume.global_batch_size > 0) {
    schedule.gradient_accumulation_steps.reset();
    schedule.global_batch_size = facts.resume.global_batch_size;
  }
  const data::BatchSizes sizes =
      data::resolve_batch_sizes(schedule, facts.max_seq_len, tokens, facts.num_ranks, facts.rows_of_rank);
  spec.micro_batch_size = sizes.micro;
  spec.global_batch_size = sizes.global;
  spec.eval_micro_batch_size = facts.profile.schedule.eval_micro_batch_size.value_or(sizes.micro);
  spec.max_tokens = std::max(sizes.micro, facts.has_evaluation ? spec.eval_micro_batch_size : 0) * facts.max_seq_len;
}

/// decoded_layers if memory does not decide it: because nothing is quantised, or the profile gives it or asks for plain
/// weights.
std::optional<std::int64_t> fixed_decoded_layers(const RunFacts& facts) {
  const ModelSection& model = facts.profile.model;
  const bool is_plain = model.base_precision != BasePrecision::kAuto && !model.is_quantised();
  if (facts.base.empty() || is_plain) return model::kAllLayers;
  return model.decoded_layers;
}

/// Sets decoded_layers for a quantised base, if all weights may take `weight_bytes`.
void decode_what_fits(const RunFacts& facts, std::int64_t weight_bytes, RunSpec& spec) {
  spec.decoded_layers = fixed_decoded_layers(facts).value_or(0);
  if (fixed_decoded_layers(facts)) return;
  const std::int64_t element_bytes = compute_bytes(facts.profile.model.precision);
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  spec.decoded_layers = model::choose_decoded_layers(facts.config, shape, element_bytes, facts.base, weight_bytes);
  if (facts.is_cuda) spec.memory = plan_memory(memory_case(facts, spec));
}

/// Values of offload_inputs to try, in this order. A smaller micro-batch, recomputation and tiles come first, because
/// they do not depend on the bus (docs/long_context.md).
std::vector<bool> offload_choices(const RunFacts& facts) {
  switch (facts.profile.run.activation_offload) {
    case ActivationOffload::kOn: return {true};
    case ActivationOffload::kOff: return {false};
    case ActivationOffload::kAuto: break;
  }
  return {false, true};
}

/// Tokens per MLP tile to try, in this order; 0 for no tiles. Only full recomputation has tiles.
std::vector<std::int64_t> tile_choices(const RunFacts& facts) {
  const RunSection& run = facts.profile.run;
  if (recompute_modes(run.gradient_checkpointing).back() != model::Recompute::kFull) return {0};
  if (run.mlp_tile_tokens || !facts.is_cuda) return {run.mlp_tile_tokens.value_or(0)};
  return {0, auto_mlp_tile_tokens(facts.max_seq_len)};
}

std::vector<model::Recompute> allowed_modes(const RunFacts& facts, const RunSpec& spec) {
  if (spec.mlp_tile_tokens > 0) return {model::Recompute::kFull};
  return recompute_modes(facts.profile.run.gradient_checkpointing);
}

/// Plans a micro-batch of the spec's size in `memory_bytes`. Returns false if it does not fit.
bool fit_size(const RunFacts& facts, std::int64_t memory_bytes, RunSpec& spec) {
  const std::vector<model::Recompute> allowed = allowed_modes(facts, spec);
  spec.decoded_layers = fixed_decoded_layers(facts).value_or(0);
  const auto fits = [&] {
    spec.memory = plan_memory(memory_case(facts, spec));
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

/// If host memory is too small: throws if the profile asks for offloading, else keeps layer inputs on the device again.
void refuse_host_memory(const RunFacts& facts, RunSpec& spec) {
  const std::int64_t bytes = spec.memory.host;
  if (bytes <= facts.host_bytes) return;
  spec.offload_inputs = false;
  if (facts.profile.run.activation_offload == ActivationOffload::kAuto) return;
  throw DeviceError("out of host memory before step 1",
                    "activation_offload: on needs {} of page-locked memory, but only {} may be used, half of what is "
                    "free. Lower micro_batch_size or max_seq_len, or set activation_offload: auto",
                    format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(facts.host_bytes)));
}

void fit_into_gpu(const RunFacts& facts, RunSpec& spec) {
  for (const std::int64_t chunk_bytes : {model::LossHeadOptions{}.chunk_bytes, kLeastLossChunkBytes}) {
    spec.loss_chunk_bytes = chunk_bytes;
    for (const bool offload : offload_choices(facts)) {
      for (const std::int64_t tile : tile_choices(facts)) {
        spec.offload_inputs = offload;
        spec.mlp_tile_tokens = tile;
        if (take_fastest(facts, spec)) return;
      }
    }
  }
  if (spec.offload_inputs) refuse_host_memory(facts, spec);
  refuse_memory(memory_case(facts, spec), facts.memory_bytes);
}

void fit_into_host(const RunFacts& facts, RunSpec& spec) {
  set_sizes(facts, facts.auto_tokens, spec);
  decode_what_fits(facts, facts.memory_bytes, spec);
  spec.offload_inputs = facts.profile.run.activation_offload == ActivationOffload::kOn;
  spec.mlp_tile_tokens = tile_choices(facts).front();
  const model::ActivationOptions options = activation_options(spec);
  const std::int64_t element_bytes = compute_bytes(facts.profile.model.precision);
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  const auto fits = [&] {
    const model::ActivationPlan plan = model::plan_activations(shape, options, spec.recompute);
    return plan.bytes(element_bytes) + plan.host_bytes(element_bytes) <= facts.memory_bytes;
  };
  model::choose_recompute(allowed_modes(facts, spec), fits, spec.recompute);
}

/// The same run without one key.
struct Alternative {
  std::string key;
  Profile profile;
  model::BaseStorage base;
};

std::vector<Alternative> alternatives_to(const RunFacts& facts) {
  const Profile& profile = facts.profile;
  std::vector<Alternative> found;
  const auto without = [&](const std::string& key, auto change) {
    Alternative alternative{key, profile, facts.base};
    change(alternative);
    found.push_back(std::move(alternative));
  };
  if (profile.run.gradient_checkpointing > GradientCheckpointing::kOff) {
    without("gradient_checkpointing: " + std::string(to_string(profile.run.gradient_checkpointing)),
            [](Alternative& a) { a.profile.run.gradient_checkpointing = GradientCheckpointing::kAuto; });
  }
  if (profile.run.activation_offload == ActivationOffload::kOn) {
    without("activation_offload: on",
            [](Alternative& a) { a.profile.run.activation_offload = ActivationOffload::kAuto; });
  }
  if (profile.run.mlp_tile_tokens.value_or(0) > 0) {
    without(fmt::format("mlp_tile_tokens: {}", *profile.run.mlp_tile_tokens),
            [](Alternative& a) { a.profile.run.mlp_tile_tokens.reset(); });
  }
  if (profile.model.decoded_layers) {
    without(fmt::format("decoded_layers: {}", *profile.model.decoded_layers),
            [](Alternative& a) { a.profile.model.decoded_layers.reset(); });
  }
  if (profile.model.is_quantised()) {
    without("base_precision: " + std::string(to_string(profile.model.base_precision)), [](Alternative& a) {
      a.profile.model.base_precision = BasePrecision::kAuto;
      a.profile.model.decoded_layers.reset();
      a.base.clear();
    });
  }
  return found;
}

/// The number of layers that are decoded in each pass.
std::int64_t num_streamed(const model::BaseStorage& base, const RunSpec& spec) {
  const auto num_layers = std::ssize(spec.recompute);
  return base.empty() ? 0 : num_layers - std::min(num_layers, spec.decoded_layers);
}

std::string describe(const model::BaseStorage& base, const RunSpec& spec) {
  constexpr const char* kModes[] = {"nothing", "norms and activations", "norms, activations, gate and up",
                                    "the whole forward"};
  std::string text = "recomputes " + std::string(kModes[static_cast<int>(spec.recompute.front())]);
  if (spec.mlp_tile_tokens > 0) text += fmt::format(", runs MLPs in tiles of {} tokens", spec.mlp_tile_tokens);
  if (const std::int64_t layers = num_streamed(base, spec); layers > 0) {
    text += fmt::format(", decodes {} layers twice per micro-batch", layers);
  }
  if (spec.offload_inputs) {
    text += ", moves " + format_bytes(2 * static_cast<double>(spec.memory.host)) + " over the bus per micro-batch";
  }
  return fmt::format("{}, and needs {}", text, format_bytes(static_cast<double>(spec.memory.total())));
}

}  // namespace

RunFacts with_profile(const RunFacts& facts, const Profile& profile) {
  return {profile,
          facts.config,
          facts.adapters,
          facts.max_seq_len,
          facts.has_evaluation,
          facts.has_token_weights,
          facts.rows_of_rank,
          facts.resume,
          facts.algorithms,
          facts.num_ranks,
          facts.is_cuda,
          facts.memory_bytes,
          facts.host_bytes,
          facts.num_multiprocessors,
          facts.auto_tokens,
          facts.base,
          facts.gate_up,
          facts.token_rows,
          facts.task_bytes,
          facts.soft_width};
}

MemoryCase memory_case(const RunFacts& facts, const RunSpec& spec) {
  return {facts.profile,
          facts.config,
          facts.adapters,
          facts.max_seq_len,
          std::max(spec.micro_batch_size, spec.eval_micro_batch_size),
          spec.recompute,
          facts.num_multiprocessors,
          facts.has_token_weights,
          spec.columns,
          spec.loss_chunk_bytes,
          facts.base,
          spec.decoded_layers,
          spec.offload_inputs,
          spec.mlp_tile_tokens,
          facts.token_rows,
          facts.task_bytes,
          facts.soft_width};
}

model::ActivationOptions activation_options(const RunSpec& spec) {
  return {
      .max_tokens = spec.max_tokens, .offload_inputs = spec.offload_inputs, .mlp_tile_tokens = spec.mlp_tile_tokens};
}

model::GradientColumns gate_up_on_gpu(const RunFacts& facts) {
  const bool is_one_kernel = facts.profile.model.precision == Precision::kBf16 &&
                             std::all_of(facts.adapters.begin(), facts.adapters.end(),
                                         [](const auto& adapter) { return adapter.rank <= kernels::kMaxRanksWithDs; });
  return is_one_kernel ? model::GradientColumns::kBesideOutput : model::GradientColumns::kBesideInput;
}

bool pad_rows(const RunFacts& facts, RunSpec& spec) {
  RunSpec padded = spec;
  padded.columns.row_pitch = model::RowPitch::kPadded;
  if (facts.is_cuda) padded.memory = plan_memory(memory_case(facts, padded));
  if (padded.memory.total() > facts.memory_bytes - slack_bytes(facts.memory_bytes)) return false;
  spec = padded;
  return true;
}

void set_loss_chunk(const RunFacts& facts, std::int64_t bytes, RunSpec& spec) {
  spec.loss_chunk_bytes = bytes;
  if (facts.is_cuda) spec.memory = plan_memory(memory_case(facts, spec));
}

RunSpec decide(const RunFacts& facts) {
  RunSpec spec;
  spec.max_seq_len = facts.max_seq_len;
  spec.memory_bytes = facts.memory_bytes;
  spec.recompute.resize(static_cast<std::size_t>(facts.config.num_layers));
  spec.seed = static_cast<std::uint64_t>(facts.profile.run.seed);
  spec.resume = facts.resume;
  spec.algorithms = facts.algorithms;
  spec.attention = spec.windowed_attention = attention_backend(facts.profile.run.attn_implementation);
  spec.columns.gate_up = facts.gate_up.value_or(facts.is_cuda ? gate_up_on_gpu(facts) : spec.columns.gate_up);
  facts.is_cuda ? fit_into_gpu(facts, spec) : fit_into_host(facts, spec);
  return spec;
}

std::string to_json(const RunSpec& spec) {
  std::vector<int> recompute;
  for (const auto mode : spec.recompute) recompute.push_back(static_cast<int>(mode));
  const MemoryPlan& m = spec.memory;
  return json{
      {"max_seq_len", spec.max_seq_len},
      {"micro_batch_size", spec.micro_batch_size},
      {"global_batch_size", spec.global_batch_size},
      {"eval_micro_batch_size", spec.eval_micro_batch_size},
      {"max_tokens", spec.max_tokens},
      {"recompute", recompute},
      {"offload_inputs", spec.offload_inputs},
      {"mlp_tile_tokens", spec.mlp_tile_tokens},
      {"decoded_layers", spec.decoded_layers},
      {"gate_up", static_cast<int>(spec.columns.gate_up)},
      {"row_pitch", static_cast<int>(spec.columns.row_pitch)},
      {"attention", static_cast<int>(spec.attention)},
      {"windowed_attention", static_cast<int>(spec.windowed_attention)},
      {"loss_chunk_bytes", spec.loss_chunk_bytes},
      {"algorithms", spec.algorithms},
      {"seed", spec.seed},
      {"resume",
       {spec.resume.checkpoint, spec.resume.step, spec.resume.loss_chunk_rows, spec.resume.global_batch_size}},
      {"memory_bytes", spec.memory_bytes},
      {"memory",
       {m.weights, m.parameters, m.activations, m.loss_head, m.batches, m.attention, m.workspaces, m.host, m.tasks}}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

RunSpec parse_run_spec(const std::string& text) {
  try {
    const json object = json::parse(text);
    RunSpec spec;
    spec.max_seq_len = object.at("max_seq_len");
    spec.micro_batch_size = object.at("micro_batch_size");
    spec.global_batch_size = object.at("global_batch_size");
    spec.eval_micro_batch_size = object.at("eval_micro_batch_size");
    spec.max_tokens = object.at("max_tokens");
    for (const int mode : object.at("recompute")) spec.recompute.push_back(static_cast<model::Recompute>(mode));
    spec.offload_inputs = object.at("offload_inputs");
    spec.mlp_tile_tokens = object.at("mlp_tile_tokens");
    spec.decoded_layers = object.at("decoded_layers");
    spec.columns.gate_up = static_cast<model::GradientColumns>(object.at("gate_up").get<int>());
    spec.columns.row_pitch = static_cast<model::RowPitch>(object.at("row_pitch").get<int>());
    spec.attention = static_cast<kernels::AttentionBackend>(object.at("attention").get<int>());
    spec.windowed_attention = static_cast<kernels::AttentionBackend>(object.at("windowed_attention").get<int>());
    spec.loss_chunk_bytes = object.at("loss_chunk_bytes");
    spec.algorithms = object.at("algorithms");
    spec.seed = object.at("seed");
    const json& resume = object.at("resume");
    spec.resume = {resume.at(0), resume.at(1), resume.at(2), resume.at(3)};
    spec.memory_bytes = object.at("memory_bytes");
    const auto memory = object.at("memory").get<std::vector<std::int64_t>>();
    spec.memory = {.weights = memory.at(0),
                   .parameters = memory.at(1),
                   .activations = memory.at(2),
                   .loss_head = memory.at(3),
                   .batches = memory.at(4),
                   .attention = memory.at(5),
                   .workspaces = memory.at(6),
                   .tasks = memory.at(8),
                   .host = memory.at(7)};
    return spec;
  } catch (const std::exception& error) {
    throw FormatError("run spec", std::string("was not written by this program: ") + error.what());
  }
}

std::vector<std::string> slower_keys(const RunFacts& facts, const RunSpec& spec) {
  std::vector<std::string> lines;
  if (!facts.is_cuda) return lines;
  for (Alternative& alternative : alternatives_to(facts)) {
    alternative.profile.schedule.micro_batch_size = spec.micro_batch_size;
    RunFacts other = with_profile(facts, alternative.profile);
    other.resume = {};
    other.algorithms.clear();
    other.base = alternative.base;
    try {
      const RunSpec without = decide(other);
      const std::int64_t streamed = num_streamed(facts.base, spec);
      const std::int64_t streamed_without = num_streamed(alternative.base, without);
      const bool tiles = spec.mlp_tile_tokens > 0, tiles_without = without.mlp_tile_tokens > 0;
      const bool is_slower = without.recompute.front() > spec.recompute.front() || streamed_without > streamed ||
                             without.offload_inputs > spec.offload_inputs || tiles_without > tiles ||
                             without.loss_chunk_bytes < spec.loss_chunk_bytes;
      const bool is_faster = without.recompute.front() < spec.recompute.front() || streamed_without < streamed ||
                             without.offload_inputs < spec.offload_inputs || tiles_without < tiles;
      if (is_slower || !is_faster) continue;
      lines.push_back(fmt::format("{} costs time that this run could save: it {}; without the key it {} of {}",
                                  alternative.key, describe(facts.base, spec), describe(alternative.base, without),
                                  format_bytes(static_cast<double>(facts.memory_bytes))));
    } catch (const DeviceError&) {  // so the key is needed
    }
  }
  return lines;
}

}  // namespace lora_train::plan
