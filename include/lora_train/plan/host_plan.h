// The memory that a run on a CPU needs, counted before weights are read.
#pragma once

#include <cstdint>

#include "lora_train/plan/memory_plan.h"

namespace lora_train::plan {

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
