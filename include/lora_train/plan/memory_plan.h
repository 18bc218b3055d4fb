// Plans the memory that a run needs on a GPU and on the host before weights are read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lora_train/model/weights/stored_linear.h"

namespace lora_train::plan {

/// Chunk size of the loss head if nothing larger fits. Each chunk reads the head twice, so these read it four times as
/// often.
inline constexpr std::int64_t kLeastLossChunkBytes = std::int64_t{64} << 20;

/// Tokens per MLP tile if mlp_tile_tokens: auto decides to tile.
constexpr std::int64_t auto_mlp_tile_tokens(std::int64_t max_seq_len) { return max_seq_len > 4096 ? 4096 : 1024; }

struct RunDevice;
struct RunFacts;
struct RunSpec;

/// Bytes per use.
struct MemoryPlan {
  std::int64_t weights = 0;       ///< as stored (model::weight_bytes), with adapter columns, before layers are decoded
  std::int64_t quantization = 0;  ///< more for the layers of a quantised base that are kept decoded
  std::int64_t adapter = 0;       ///< masters and gradients of the trained tensors
  std::int64_t optimizer = 0, activations = 0;
  std::int64_t loss_head = 0;
  std::int64_t batches = 0;     ///< buffers of BatchFeed
  std::int64_t attention = 0;   ///< temporary memory of LibTorch or cuDNN in attention
  std::int64_t workspaces = 0;  ///< for GEMMs and native kernels
  std::int64_t tasks = 0;       ///< for eval_tasks: a key-value cache and its buffers
  std::int64_t program = 0;     ///< on a CPU: LibTorch with its tables, and the copy of a checkpoint being written
  std::int64_t host = 0;        ///< page-locked host memory of offloaded layer inputs; not part of total()

  /// The working memory of a step, besides activations.
  std::int64_t workspace() const { return loss_head + batches + attention + workspaces + tasks; }
  std::int64_t total() const {
    return weights + quantization + adapter + optimizer + activations + workspace() + program;
  }
  bool operator==(const MemoryPlan&) const = default;
  /// "weights 14.2 GiB, activations 3.1 GiB, ...", largest first.
  std::string describe() const;
};

/// What a GPU must hold for this run.
MemoryPlan plan_memory(const RunFacts& facts, const RunSpec& spec);

/// Bytes of GPU memory that a run may plan for: the free memory minus a reserve for what cannot be counted.
std::int64_t memory_budget(const RunDevice& device);
/// The same for a GPU with `total_bytes` of memory, `free_bytes` of it free.
std::int64_t memory_budget(std::int64_t total_bytes, std::int64_t free_bytes);

/// Bytes of such a budget that a plan leaves free if that costs little time, because counts are not exact.
constexpr std::int64_t slack_bytes(std::int64_t budget_bytes) { return budget_bytes / 50; }

/// Throws DeviceError after an allocation failed despite the plan. The message says what was planned, what is in use,
/// and which keys to change. `reason` is LibTorch's message.
[[noreturn]] void throw_out_of_memory(const RunFacts& facts, const RunSpec& spec, const RunDevice& device,
                                      const std::string& reason);

/// The largest micro-batch. Larger buffers have pages that are never touched.
struct TouchedTokens {
  std::int64_t tokens = 0, supervised = 0;
};

/// A run's largest resident set on a CPU, without the data and the tokenizer's tables.
MemoryPlan plan_host(const RunFacts& facts, const RunSpec& spec, const TouchedTokens& touched);

/// What must be free for a run, or a loaded model, with a profile and its quantised base; without `program`.
using HostPlanner = std::function<MemoryPlan(const Profile&, const model::BaseStorage&)>;

/// For a CPU, before weights are read: throws DeviceError if more than `free_bytes` are needed, with what they are for and
/// each base_precision that would fit; if none would, the largest max_seq_len up to `max_seq_len` (0: of no effect).
void require_host_memory(const Profile& profile, const model::ModelConfig& config, const model::BaseStorage& base,
                         std::int64_t free_bytes, std::int64_t max_seq_len, const HostPlanner& plan_with);

}  // namespace lora_train::plan
