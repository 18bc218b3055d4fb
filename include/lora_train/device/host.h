// The processor and the memory of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lora_train::device {

struct Host {
  std::string cpu_model;                  ///< "Intel(R) Xeon(R) Processor"; empty if /proc/cpuinfo lacks it
  int num_cores = 0;                      ///< cores that this process may run on
  std::vector<std::string> vector_units;  ///< the CPU's units among avx2, avx512f, avx512_bf16 and amx_bf16
  std::uint64_t memory_bytes = 0;         ///< memory of the machine
};

/// Reads `cpuinfo` and `meminfo` in the folder `proc`.
Host describe_host(const std::string& proc = "/proc");

}  // namespace lora_train::device
