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

/// Bytes that the control group in `folder` and those above it, up to `top`, still allow. `stat`: how the version names
/// its cached file pages, which the kernel evicts.
std::int64_t left_in_groups(std::filesystem::path folder, const std::filesystem::path& top, const char* limit_file,
                            const char* used_file, const std::string& stat) {
  std::int64_t left = kNoLimit;
  for (;; folder = folder.parent_path()) {
    const std::int64_t limit = number_after("", folder / limit_file, kNoLimit);
    std::int64_t used = number_after("", folder / used_file, 0);
    for (const char* list : {"inactive_file", "active_file"})
      used -= number_after(stat + list, folder / "memory.stat", 0);
    if (limit != kNoLimit) left = std::min(left, std::max<std::int64_t>(limit - used, 0));
    if (folder == top || !folder.has_relative_path()) return left;
  }
}

/// The same for the groups of this process (a container, a Slurm job).
std::int64_t left_in_cgroups(const std::filesystem::path& root) {
  const std::filesystem::path v2 = root / "sys/fs/cgroup", v1 = v2 / "memory";
  std::ifstream file(root / "proc/self/cgroup");
  std::int64_t left = kNoLimit;
  for (std::string line; std::getline(file, line);) {  // "4:cpu,memory:/job" in version 1, "0::/job" in version 2
    const std::string path = line.substr(std::min(line.size(), line.find(":/") + 2));
    if (line.starts_with("0::/"))
      left = std::min(left, left_in_groups(v2 / path, v2, "memory.max", "memory.current", ""));
    else if (line.find(":memory:") != std::string::npos || line.find(",memory") != std::string::npos)
      left = std::min(left, left_in_groups(v1 / path, v1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"));
  }
  return left;
}

}  // namespace

double peak_host_memory_gib() { return gib_of_process("VmHWM:"); }

double host_memory_gib() { return gib_of_process("VmRSS:"); }

std::int64_t available_host_memory(const std::filesystem::path& root) {
  const std::int64_t of_machine = number_after("MemAvailable:", root / "proc/meminfo", std::int64_t{8} << 20) * 1024;
  return std::min(of_machine, left_in_cgroups(root));
}

}  // namespace lora_train::report
