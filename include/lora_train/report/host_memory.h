// Memory of this process.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lora_train::report {

/// Largest resident set so far in GiB (VmHWM of /proc/self/status); 0 if that file is missing.
double peak_host_memory_gib();

/// Resident set now, in GiB (VmRSS); 0 if that file is missing.
double host_memory_gib();

/// Bytes that this process can still allocate: MemAvailable of /proc/meminfo (8 GiB if that file is missing), or less
/// if a control group (container, Slurm job; version 1 or 2) or one above it limits it. Cached file pages count as
/// free, swap does not. `root` holds /proc and /sys.
std::int64_t available_host_memory(const std::filesystem::path& root = "/");

}  // namespace lora_train::report
