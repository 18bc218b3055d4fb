// Runs on GPUs that are not here: what decide() needs to know of them, and why one does not fit. No launch, no allocation.
#pragma once

#include <string>
#include <vector>

#include "lora_train/device/gpu_table.h"
#include "lora_train/plan/run_spec.h"

namespace lora_train::plan {

/// The facts of the same run on such GPUs. CUDA's context is taken from the memory, as the driver would report it.
RunFacts facts_on(const RunFacts& facts, const device::GpuFacts& gpu);

/// What decide() would say on a GPU with any amount of memory, of the run that needs least without giving up what the profile
/// asks for: rows one at a time, fully recomputed, quantised layers decoded when they are used.
RunSpec decide_smallest(const RunFacts& facts);

/// The profile with the keys that trade time for memory at the end where a run needs least: rows one at a time, fully recomputed, no
/// quantised layer kept decoded. What is trained, and in which precision, stays.
Profile with_least_memory(Profile profile);

/// The least memory of a GPU in which decide() could place the run of with_least_memory(), tiled and offloaded where that helps.
std::int64_t least_bytes(const RunFacts& facts);

/// Keys with values that would make the run fit, each way on its own, the least change first: "micro_batch_size: auto",
/// "gradient_checkpointing: auto with base_precision: nf4". Empty if none does.
std::vector<std::string> ways_to_fit(const RunFacts& facts);

/// Why the run does not fit the GPU it is meant for, and what to change: "micro_batch_size: 8 needs 82.1 GiB; one H100 may use
/// 77.0 GiB: use micro_batch_size: auto". Empty if it fits.
std::string misfit(const RunFacts& facts, const device::GpuFacts& gpu);

}  // namespace lora_train::plan
