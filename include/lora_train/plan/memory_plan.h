// The memory that a run needs on a GPU and on the host, counted before weights are read, and what to change if it does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/data/prepare.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::plan {

/// Chunks of the loss head where nothing else fits: each chunk reads the head twice, so they read it four times as often.
inline constexpr std::int64_t kLeastLossChunkBytes = std::int64_t{64} << 20;

/// Tokens of an MLP's tile with mlp_tile_tokens: auto, where it tiles.
constexpr std::int64_t auto_mlp_tile_tokens(std::int64_t max_seq_len) { return max_seq_len > 4096 ? 4096 : 1024; }

/// Bytes by use.
struct MemoryPlan {
  std::int64_t weights = 0;     ///< as they are kept (model::weight_bytes), adapter columns included
  std::int64_t parameters = 0;  ///< masters, gradients and optimizer state of the trained tensors
  std::int64_t activations = 0;
  std::int64_t loss_head = 0;
  std::int64_t batches = 0;     ///< buffers of BatchFeed
  std::int64_t attention = 0;   ///< temporary memory of LibTorch or cuDNN in attention
  std::int64_t workspaces = 0;  ///< of GEMMs and native kernels
  std::int64_t tasks = 0;       ///< of eval_tasks: a key-value cache and the buffers beside it
  std::int64_t host = 0;        ///< page-locked host memory of offloaded layer inputs; not part of total()

  std::int64_t total() const {
    return weights + parameters + activations + loss_head + batches + attention + workspaces + tasks;
  }
  bool operator==(const MemoryPlan&) const = default;
  /// "weights 14.2 GiB, activations 3.1 GiB, ..."; the largest first.
  std::string describe() const;
};

/// The inputs that decide the sizes.
struct MemoryCase {
  const Profile& profile;
  const model::ModelConfig& config;
  const std::vector<model::AdapterSpec>& adapters;
  std::int64_t max_seq_len = 0, rows = 1;   ///< of a micro-batch
  std::vector<model::Recompute> recompute;  ///< per layer
  int num_multiprocessors = 0;              ///< of the GPU: deterministic attention needs memory per multiprocessor
  bool has_token_weights = false;
  model::ColumnLayout columns = {};
  std::int64_t loss_chunk_bytes = model::LossHeadOptions{}.chunk_bytes;
  model::BaseStorage base = {};  ///< linears that are kept quantised
  std::int64_t decoded_layers = model::kAllLayers;
  bool offload_inputs = false;       ///< model::ActivationOptions::offload_inputs
  std::int64_t mlp_tile_tokens = 0;  ///< model::ActivationOptions::mlp_tile_tokens
  model::TokenRows token_rows = {};  ///< trained beside the adapters
  std::int64_t task_bytes = 0;       ///< RunFacts::task_bytes
  std::int64_t soft_width = 0;       ///< RunFacts::soft_width

  std::int64_t max_tokens() const { return max_seq_len * rows; }
};
MemoryPlan plan_memory(const MemoryCase& requested);

/// Throws the DeviceError for a run that does not fit. It says how much memory is missing, what uses it, and which keys to
/// change to which values.
[[noreturn]] void refuse_memory(const MemoryCase& requested, std::int64_t budget_bytes);

/// GPU memory that a run may plan to use, in bytes: the free memory less a reserve for what cannot be counted.
std::int64_t memory_budget(const RunDevice& device);
/// The same of a GPU with so many bytes in all, and free.
std::int64_t memory_budget(std::int64_t total_bytes, std::int64_t free_bytes);

/// What a plan leaves free of such a budget where that costs little time: counts are not exact.
constexpr std::int64_t slack_bytes(std::int64_t budget_bytes) { return budget_bytes / 50; }

/// Throws DeviceError after an allocation failed despite the plan. It says what was planned, what is in use, and which keys to
/// change. `reason` is LibTorch's message.
[[noreturn]] void throw_out_of_memory(const MemoryCase& planned, const RunDevice& device, const std::string& reason);

/// The largest micro-batch. Of buffers for more, the other pages are never touched.
struct TouchedTokens {
  std::int64_t tokens = 0, supervised = 0;
};

/// What the largest resident set of a run consists of, in bytes. Not in it: the data, and the tokenizer's tables.
struct HostPlan {
  MemoryPlan run;  ///< what a GPU would hold: `attention` and `workspaces` are those of a CPU
  std::int64_t checkpoint_copy =
      0;  ///< trained values and optimizer state, copied so that training goes on while they are written
  std::int64_t program = 0;  ///< code and tables of LibTorch and ours, the allocator's slack, and small objects
  std::int64_t total() const { return run.total() + checkpoint_copy + program; }
};
HostPlan plan_host(const MemoryCase& requested, const TouchedTokens& touched);

}  // namespace lora_train::plan
