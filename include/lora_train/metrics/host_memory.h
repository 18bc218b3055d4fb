// Memory of this process.
#pragma once

#include <cstdint>

namespace lora_train::metrics {

/// Largest resident set so far in GiB (VmHWM of /proc/self/status); 0 where that file is missing.
double peak_host_memory_gib();

/// What this process could still take, in bytes: MemAvailable of /proc/meminfo (8 GiB where that file is missing), or less
/// where a control group (container, Slurm job) leaves less.
std::int64_t available_host_memory();

}  // namespace lora_train::metrics
