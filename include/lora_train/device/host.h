// The processor and the memory of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lora_train::device {

struct Host {
  std::string cpu_model;                  ///< "Intel(R) Xeon(R) Processor"; empty where /proc/cpuinfo does not say
  int num_cores = 0;                      ///< that this process may run on
  std::vector<std::string> vector_units;  ///< of avx2, avx512f, avx512_bf16, amx_bf16: those there are
  std::uint64_t memory_bytes = 0;         ///< of the machine
};

/// Reads `cpuinfo` and `meminfo` of `proc`.
Host describe_host(const std::string& proc = "/proc");

}  // namespace lora_train::device
