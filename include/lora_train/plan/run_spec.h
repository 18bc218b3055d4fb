// Everything a run will do, decided before anything is allocated: plain data that depends only on facts, for training,
// bench and dry runs alike. allocate() (run/build_run.h) creates the buffers it describes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/data/prepare.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::plan {

/// The point where a run resumes, and the choices that its checkpoint stores.
struct ResumePoint {
  std::string checkpoint;            ///< folder; empty for a new run
  std::int64_t step = 0;             ///< last finished step
  std::int64_t loss_chunk_rows = 0;  ///< 0 if unknown
  /// RunSpec::global_batch_size, kept even if gradient_accumulation_steps would change it on another number of ranks.
  /// 0: use the profile's.
  std::int64_t global_batch_size = 0;
  bool operator==(const ResumePoint&) const = default;
};

/// The input of decide(): the profile, the model, and facts about data, ranks and device.
struct RunFacts {
  std::reference_wrapper<const Profile> profile;
  const model::ModelConfig& config;
  const std::vector<model::AdapterSpec>& adapters;
  std::int64_t max_seq_len = 0;
  bool has_evaluation = false, has_token_weights = false;
  std::int64_t rows_of_rank = 0;  ///< data::count_rows_of_rank()
  ResumePoint resume{};
  std::string algorithms{};  ///< RunSpec::algorithms from the resumed checkpoint
  std::int64_t num_ranks = 1;
  bool is_cuda = false;
  std::int64_t memory_bytes = 0;                           ///< GPU: limit for the whole run; CPU: limit for activations
  std::int64_t host_bytes = 0;                             ///< GPU: limit for page-locked host memory
  int num_multiprocessors = 0;                             ///< on a GPU
  std::int64_t auto_tokens = data::kAutoMicroBatchTokens;  ///< CPU: tokens per micro-batch with micro_batch_size: auto
  model::BaseStorage base{};                               ///< linears that the run keeps quantised
  std::optional<model::GradientColumns>
      gate_up{};                  ///< overrides the rule: gate_up_on_gpu() on a GPU, next to the input on a CPU
  model::TokenRows token_rows{};  ///< trained together with the adapters
  std::int64_t task_bytes = 0;    ///< least GPU memory for eval_tasks (evaluate::TaskEvaluation::least_bytes)
  std::int64_t soft_width = 0;    ///< width of the data's soft labels

  std::int64_t element_bytes() const { return compute_bytes(profile.get().model.precision); }
};

/// The same facts for another profile, which must outlive them.
inline RunFacts with_profile(RunFacts facts, const Profile& profile) {
  facts.profile = profile;
  return facts;
}

struct RunSpec {
  std::int64_t max_seq_len = 0;
  std::int64_t micro_batch_size = 1;   ///< rows
  std::int64_t global_batch_size = 1;  ///< rows or documents (batch_unit) per step over all ranks
  std::int64_t eval_micro_batch_size = 1;
  std::int64_t max_tokens = 0;              ///< capacity of the buffers: the largest micro-batch, evaluations included
  std::vector<model::Recompute> recompute;  ///< per layer
  bool offload_inputs = false;              ///< model::ActivationOptions::offload_inputs
  std::int64_t mlp_tile_tokens = 0;         ///< model::ActivationOptions::mlp_tile_tokens
  std::int64_t decoded_layers = model::kAllLayers;  ///< for a quantised base: model::WeightOptions::decoded_layers
  model::ColumnLayout columns;                      ///< adapter columns
  kernels::AttentionBackend attention = kernels::AttentionBackend::kAuto;
  kernels::AttentionBackend windowed_attention =
      kernels::AttentionBackend::kAuto;  ///< for layers with a sliding window
  std::int64_t loss_chunk_bytes = model::LossHeadOptions{}.chunk_bytes;
  std::string algorithms;  ///< chosen by measuring (plan/tuning/tuning.h), as JSON; may be empty
  std::uint64_t seed = 0;
  ResumePoint resume{};
  std::int64_t memory_bytes = 0;  ///< RunFacts::memory_bytes
  MemoryPlan memory;              ///< on a GPU; zeros on a CPU

  data::BatchSizes sizes() const { return {micro_batch_size, global_batch_size}; }
  /// The part of memory_bytes that the plan does not use; 0 on a CPU.
  std::int64_t spare_bytes() const { return memory.total() > 0 ? memory_bytes - memory.total() : 0; }
  bool operator==(const RunSpec&) const = default;
};

/// The buffers of a spec.
model::ActivationOptions activation_options(const RunSpec& spec);

/// The form of gate|up's backward that moves fewer bytes on a GPU (docs/performance.md): next to the output in bf16, if
/// one kernel computes dS and dB. (On a CPU, where two kernels read dy, next to the input: 27.0 instead of 28.0 ms.)
model::GradientColumns gate_up_on_gpu(const RunFacts& facts);

/// A pure function of the facts. On a GPU, micro_batch_size: auto and gradient_checkpointing: auto become the fastest
/// that fit, by count (step_time.h): up to 16384 tokens with the least recomputation. Plans within 1% of each other
/// count as equal; of those, the one with the least memory wins. A plan without slack_bytes() wins only if it saves 2%.
/// Only if not even full recomputation of one row fits, mlp_tile_tokens: auto tiles, then activation_offload: auto
/// offloads, then both. On a CPU, gradient_checkpointing: auto becomes the least recomputation whose buffers fit.
/// Throws DeviceError if the memory of a GPU is too small: how much is missing, what uses it, and ways_on().
RunSpec decide(const RunFacts& facts);
/// The same; nothing if memory is too small.
std::optional<RunSpec> decide_if_fits(const RunFacts& facts);

/// Plans padded rows with adapter columns. Returns false and leaves the spec unchanged if a GPU's memory is too small
/// for that plus slack_bytes().
bool pad_rows(const RunFacts& facts, RunSpec& spec);

/// Sets loss_chunk_bytes and the planned memory of the loss head.
void set_loss_chunk(const RunFacts& facts, std::int64_t bytes, RunSpec& spec);

/// Convert to one line of JSON and back, for other ranks of the same program.
std::string to_json(const RunSpec& spec);
RunSpec parse_run_spec(const std::string& json);

/// Keys and values that would make the run fit, each alternative on its own, smallest change first: "micro_batch_size:
/// auto", "gradient_checkpointing: auto with base_precision: nf4". Empty if none would.
std::vector<std::string> ways_to_fit(const RunFacts& facts);

/// What to do about a run that does not fit: "use micro_batch_size: auto, or ...".
std::string ways_on(const RunFacts& facts);

/// One line for each of gradient_checkpointing, activation_offload, mlp_tile_tokens, decoded_layers and base_precision
/// that the profile sets although a micro-batch of the same size fits without it and with less recomputation or
/// decoding. Empty on a CPU.
std::vector<std::string> slower_keys(const RunFacts& facts, const RunSpec& spec);

// Runs on GPUs of other machines.

/// The facts of the same run on such GPUs. Subtracts CUDA's context from the memory, as the driver would.
RunFacts facts_on(const RunFacts& facts, const device::GpuFacts& gpu);

/// The spec from decide() on a GPU with unlimited memory, for the smallest run that still does what the profile asks
/// for: rows one at a time, fully recomputed, quantised layers decoded when used.
RunSpec decide_smallest(const RunFacts& facts);

/// The profile with all keys that trade time for memory set to the least memory: rows one at a time, fully recomputed,
/// no quantised layer kept decoded. Keeps what is trained, and the precision.
Profile with_least_memory(Profile profile);

/// The least GPU memory in which decide() could fit the run of with_least_memory(), tiled and offloaded if that helps.
std::int64_t least_bytes(const RunFacts& facts);

/// Says why the run does not fit its target GPU, and what to change: "the run needs 82.1 GiB, but one H100 may use
/// 77.0 GiB: use micro_batch_size: auto". Empty if it fits.
std::string misfit(const RunFacts& facts, const device::GpuFacts& gpu);

}  // namespace lora_train::plan
