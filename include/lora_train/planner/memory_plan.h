// What a run needs of a GPU's memory, counted before a weight is read, and what to change where it does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/data/run_plan.h"
#include "lora_train/runtime/run_device.h"
#include "lora_train/runtime/setup.h"

namespace lora_train::planner {

/// Bytes, by what holds them.
struct MemoryPlan {
  std::int64_t weights = 0;     ///< compute layout, adapter columns included
  std::int64_t parameters = 0;  ///< masters and gradients of what is trained, and optimizer state
  std::int64_t activations = 0;
  std::int64_t loss_head = 0;
  std::int64_t batches = 0;     ///< micro-batches on their way
  std::int64_t attention = 0;   ///< what LibTorch or cuDNN take while attention is computed
  std::int64_t workspaces = 0;  ///< of matrix products and our kernels

  std::int64_t total() const {
    return weights + parameters + activations + loss_head + batches + attention + workspaces;
  }
  bool operator==(const MemoryPlan&) const = default;
  /// "weights 14.2 GiB, activations 3.1 GiB, ..."; the largest first.
  std::string describe() const;
};

/// What decides the sizes.
struct MemoryCase {
  const Profile& profile;
  const model::ModelConfig& config;
  const std::vector<model::AdapterSpec>& adapters;
  std::int64_t max_seq_len = 0, rows = 1;  ///< of a micro-batch
  model::Recompute recompute = model::Recompute::kOff;
  int num_multiprocessors = 0;  ///< of the GPU: deterministic attention takes memory for each
  bool has_token_weights = false;

  std::int64_t max_tokens() const { return max_seq_len * rows; }
};
MemoryPlan plan_memory(const MemoryCase& asked);

/// Throws the DeviceError for a run that does not fit: how much is missing, what holds the memory, and which keys to change
/// to what.
[[noreturn]] void refuse_memory(const MemoryCase& asked, std::int64_t budget_bytes);

/// Bytes of a GPU that a run may plan with: what is free, less a reserve for what cannot be counted.
std::int64_t memory_budget(const runtime::RunDevice& device);

/// For an allocation that failed all the same: what was planned, what is in use, and which keys to change. `reason` is what
/// LibTorch says.
[[noreturn]] void throw_out_of_memory(const MemoryCase& planned, const runtime::RunDevice& device,
                                      const std::string& reason);

}  // namespace lora_train::planner
