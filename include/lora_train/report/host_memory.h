// Memory of this process.
#pragma once

#include <cstdint>

namespace lora_train::report {

/// Largest resident set so far in GiB (VmHWM of /proc/self/status); 0 if that file is missing.
double peak_host_memory_gib();

/// Resident set now, in GiB (VmRSS); 0 if that file is missing.
double host_memory_gib();

/// Bytes that this process can still allocate: MemAvailable of /proc/meminfo (8 GiB if that file is missing), or less
/// if a control group (container, Slurm job) limits it.
std::int64_t available_host_memory();

}  // namespace lora_train::report
