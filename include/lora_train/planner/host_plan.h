// The memory that a run on a CPU needs, counted before weights are read.
#pragma once

#include <cstdint>

#include "lora_train/planner/memory_plan.h"

namespace lora_train::planner {

/// What the largest resident set of a run consists of, in bytes. Every buffer counts in full: with short documents and without
/// packing, pages of some are never touched. Not in it: more than a rank's own files, and data of millions of rows.
struct HostPlan {
  MemoryPlan run;  ///< what a GPU would hold: `attention` and `workspaces` are those of a CPU
  std::int64_t checkpoint_copy =
      0;  ///< trained values and optimizer state, copied so that training goes on while they are written
  std::int64_t program = 0;  ///< code and tables of LibTorch and ours, the allocator's slack, and small objects
  std::int64_t total() const { return run.total() + checkpoint_copy + program; }
};
HostPlan plan_host(const MemoryCase& requested);

}  // namespace lora_train::planner
