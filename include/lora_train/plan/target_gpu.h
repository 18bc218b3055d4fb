// Runs on GPUs of other machines: the facts that decide() needs, and why a run does not fit. Launches and allocates
// nothing.
#pragma once

#include <string>

#include "lora_train/device/gpu_table.h"
#include "lora_train/plan/run_spec.h"

namespace lora_train::plan {

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
