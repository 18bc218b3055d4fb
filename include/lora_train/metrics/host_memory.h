// Memory of this process.
#pragma once

namespace lora_train::metrics {

/// Largest resident set so far in GiB (VmHWM of /proc/self/status); 0 where that file is missing.
double peak_host_memory_gib();

}  // namespace lora_train::metrics
