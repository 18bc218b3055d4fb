#include "lora_train/metrics/host_memory.h"

#include <cstdio>
#include <cstring>

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

}  // namespace lora_train::metrics
