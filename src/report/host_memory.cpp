#include "lora_train/report/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace lora_train::report {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::int64_t number_in(const std::filesystem::path& file, std::int64_t otherwise) {
  std::int64_t number = 0;
  return std::ifstream(file) >> number ? number : otherwise;  // "max" is not a number
}

/// Cached file pages, which the kernel evicts first.
std::int64_t inactive_file_bytes(const std::filesystem::path& folder) {
  std::ifstream file(folder / "memory.stat");
  std::string key;
  for (std::int64_t bytes = 0; file >> key >> bytes;) {
    if (key == "inactive_file") return bytes;
  }
  return 0;
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
    const std::int64_t limit = number_in(folder / "memory.max", kNoLimit);
    if (limit != kNoLimit) {
      const std::int64_t used = number_in(folder / "memory.current", 0) - inactive_file_bytes(folder);
      left = std::min(left, std::max<std::int64_t>(limit - used, 0));
    }
    if (folder == root || !folder.has_relative_path()) return left;
  }
}

}  // namespace

double peak_host_memory_gib() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return 0;
  double kib = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, "VmHWM:", 6) == 0) std::sscanf(line + 6, "%lf", &kib);
  }
  std::fclose(file);
  return kib / (1024.0 * 1024.0);
}

double host_memory_gib() {
  double pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 30);
}

std::int64_t available_host_memory() {
  std::int64_t available = std::int64_t{8} << 30;
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (std::int64_t kib = 0; file >> key >> kib >> unit;) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, left_in_cgroup());
}

}  // namespace lora_train::report
