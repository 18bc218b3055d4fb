#include "lora_train/report/usage.h"

#include <ctime>

namespace lora_train::report {
namespace {

std::optional<double> sum(const std::optional<double>& one, const std::optional<double>& other) {
  return one && other ? std::optional(*one + *other) : std::nullopt;
}

}  // namespace

std::optional<double> Usage::mean_gpu_utilization() const {
  return gpu_watched_s > 0 ? std::optional(100 * gpu_busy_s / gpu_watched_s) : std::nullopt;
}

Usage operator+(const Usage& one, const Usage& other) {
  return {sum(one.cpu_s, other.cpu_s), sum(one.energy_wh, other.energy_wh), one.gpu_watched_s + other.gpu_watched_s,
          one.gpu_busy_s + other.gpu_busy_s};
}

Usage process_usage() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return {};
  return {.cpu_s = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)};
}

}  // namespace lora_train::report
