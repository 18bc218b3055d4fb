#include "lora_train/report/host_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace lora_train::report {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// The number after a word in a file of the kernel's; after no word: at its start, unless that is "max".
std::int64_t number_after(std::string_view word, const std::filesystem::path& file, std::int64_t otherwise) {
  std::ifstream words(file);
  std::string found;
  while (found != word && words >> found) {
  }
  std::int64_t number = 0;
  return words >> number ? number : otherwise;
}

double gib_of_process(std::string_view word) {
  return static_cast<double>(number_after(word, "/proc/self/status", 0)) / (1 << 20);
}

/// Bytes that the control groups of this process (a container, a Slurm job) still allow; cgroup v2.
std::int64_t left_in_cgroup() {
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::filesystem::path folder = root;
  while (std::getline(file, line)) {
    if (line.starts_with("0::/")) folder = root / line.substr(4);
  }
  std::int64_t left = kNoLimit;
  for (;; folder = folder.parent_path()) {
    const std::int64_t limit = number_after("", folder / "memory.max", kNoLimit);
    if (limit != kNoLimit) {
      // The kernel evicts cached file pages first.
      const std::int64_t used =
          number_after("", folder / "memory.current", 0) - number_after("inactive_file", folder / "memory.stat", 0);
      left = std::min(left, std::max<std::int64_t>(limit - used, 0));
    }
    if (folder == root || !folder.has_relative_path()) return left;
  }
}

}  // namespace

double peak_host_memory_gib() { return gib_of_process("VmHWM:"); }

double host_memory_gib() { return gib_of_process("VmRSS:"); }

std::int64_t available_host_memory() {
  return std::min(number_after("MemAvailable:", "/proc/meminfo", std::int64_t{8} << 20) * 1024, left_in_cgroup());
}

}  // namespace lora_train::report
