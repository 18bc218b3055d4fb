// Plans the memory that a run needs on a GPU and on the host before weights are read, and says what to change if it
// does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/data/prepare.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::plan {

/// Chunk size of the loss head if nothing larger fits. Each chunk reads the head twice, so these read it four times as
/// often.
inline constexpr std::int64_t kLeastLossChunkBytes = std::int64_t{64} << 20;

/// Tokens per MLP tile if mlp_tile_tokens: auto decides to tile.
constexpr std::int64_t auto_mlp_tile_tokens(std::int64_t max_seq_len) { return max_seq_len > 4096 ? 4096 : 1024; }

/// Bytes per use.
struct MemoryPlan {
  std::int64_t weights = 0;     ///< as stored (model::weight_bytes), with adapter columns
  std::int64_t parameters = 0;  ///< masters, gradients and optimizer state of the trained tensors
  std::int64_t activations = 0;
  std::int64_t loss_head = 0;
  std::int64_t batches = 0;     ///< buffers of BatchFeed
  std::int64_t attention = 0;   ///< temporary memory of LibTorch or cuDNN in attention
  std::int64_t workspaces = 0;  ///< for GEMMs and native kernels
  std::int64_t tasks = 0;       ///< for eval_tasks: a key-value cache and its buffers
  std::int64_t host = 0;        ///< page-locked host memory of offloaded layer inputs; not part of total()

  std::int64_t total() const {
    return weights + parameters + activations + loss_head + batches + attention + workspaces + tasks;
  }
  bool operator==(const MemoryPlan&) const = default;
  /// "weights 14.2 GiB, activations 3.1 GiB, ...", largest first.
  std::string describe() const;
};

/// The inputs that decide the sizes.
struct MemoryCase {
  const Profile& profile;
  const model::ModelConfig& config;
  const std::vector<model::AdapterSpec>& adapters;
  std::int64_t max_seq_len = 0, rows = 1;   ///< rows per micro-batch
  std::vector<model::Recompute> recompute;  ///< per layer
  int num_multiprocessors = 0;              ///< deterministic attention needs memory per multiprocessor
  bool has_token_weights = false;
  model::ColumnLayout columns = {};
  std::int64_t loss_chunk_bytes = model::LossHeadOptions{}.chunk_bytes;
  model::BaseStorage base = {};  ///< linears kept quantised
  std::int64_t decoded_layers = model::kAllLayers;
  bool offload_inputs = false;       ///< model::ActivationOptions::offload_inputs
  std::int64_t mlp_tile_tokens = 0;  ///< model::ActivationOptions::mlp_tile_tokens
  model::TokenRows token_rows = {};  ///< trained together with the adapters
  std::int64_t task_bytes = 0;       ///< RunFacts::task_bytes
  std::int64_t soft_width = 0;       ///< RunFacts::soft_width

  std::int64_t max_tokens() const { return max_seq_len * rows; }
};
MemoryPlan plan_memory(const MemoryCase& requested);

/// Throws the DeviceError for a run that does not fit. The message says how much memory is missing, what uses it, and
/// which keys to set to which values.
[[noreturn]] void refuse_memory(const MemoryCase& requested, std::int64_t budget_bytes);

/// Bytes of GPU memory that a run may plan for: the free memory minus a reserve for what cannot be counted.
std::int64_t memory_budget(const RunDevice& device);
/// The same for a GPU with `total_bytes` of memory, `free_bytes` of it free.
std::int64_t memory_budget(std::int64_t total_bytes, std::int64_t free_bytes);

/// Bytes of such a budget that a plan leaves free if that costs little time, because counts are not exact.
constexpr std::int64_t slack_bytes(std::int64_t budget_bytes) { return budget_bytes / 50; }

/// Throws DeviceError after an allocation failed despite the plan. The message says what was planned, what is in use,
/// and which keys to change. `reason` is LibTorch's message.
[[noreturn]] void throw_out_of_memory(const MemoryCase& planned, const RunDevice& device, const std::string& reason);

/// The largest micro-batch. Larger buffers have pages that are never touched.
struct TouchedTokens {
  std::int64_t tokens = 0, supervised = 0;
};

/// The parts of a run's largest resident set, in bytes, without the data and the tokenizer's tables.
struct HostPlan {
  MemoryPlan run;  ///< what a GPU would hold, but `attention` and `workspaces` as on a CPU
  std::int64_t checkpoint_copy =
      0;  ///< trained values and optimizer state, copied so that training continues while they are written
  std::int64_t program = 0;  ///< code and tables (LibTorch's and ours), allocator slack, small objects
  std::int64_t total() const { return run.total() + checkpoint_copy + program; }
};
HostPlan plan_host(const MemoryCase& requested, const TouchedTokens& touched);

}  // namespace lora_train::plan
