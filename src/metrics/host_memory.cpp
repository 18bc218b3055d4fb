#include "lora_train/metrics/host_memory.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace lora_train::metrics {

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

std::int64_t available_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (std::int64_t kib = 0; file >> key >> kib >> unit;) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::int64_t{8} << 30;
}

}  // namespace lora_train::metrics
