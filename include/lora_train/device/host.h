// The processor and the memory of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lora_train::device {

struct Host {
  std::string cpu_model;                  ///< "Intel(R) Xeon(R) Processor"; empty if /proc/cpuinfo lacks it
  int num_cores = 0;                      ///< logical cores (hyperthreads) that this process may run on
  std::vector<std::string> vector_units;  ///< the CPU's units among avx2, avx512f, avx512_bf16 and amx_bf16
  std::uint64_t memory_bytes = 0;         ///< memory of the machine
  int num_physical_cores = 0;             ///< those that num_cores are part of
  int num_numa_nodes = 1;                 ///< those with a core that this process may run on
};

/// Reads `cpuinfo` and `meminfo` in the folder `proc`, and the topology in the folder `sys`.
Host describe_host(const std::string& proc = "/proc", const std::string& sys = "/sys");

/// Seconds of processor time so far.
struct CpuTimes {
  double all = 0;  ///< of everybody on the logical cores asked for, and what a hypervisor took from them
  double own = 0;  ///< of this process, in any of its threads
};

/// Reads `stat` in the folder `proc`, which counts in hundredths.
CpuTimes cpu_times(const std::vector<int>& cpus, const std::string& proc = "/proc");

/// Numbers of the logical cores that this process may run on, ascending. Empty if the system does not say.
std::vector<int> usable_cpus();

/// Physical cores that the logical cores `cpus` are part of. A core that the folder `sys` says nothing of is physical.
int count_physical_cores(const std::vector<int>& cpus, const std::string& sys = "/sys");

/// NUMA nodes that have one of the logical cores `cpus`; 1 if the folder `sys` lists no node.
int count_numa_nodes(const std::vector<int>& cpus, const std::string& sys = "/sys");

}  // namespace lora_train::device
