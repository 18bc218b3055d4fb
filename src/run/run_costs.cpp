#include "lora_train/run/run_costs.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/report/host_memory.h"

namespace lora_train::run {
namespace {

constexpr double kUnknown = -1;

std::optional<double> known(double value) { return value == kUnknown ? std::nullopt : std::optional(value); }

}  // namespace

void ResourceWatch::watch_gpu(const std::string& uuid, const device::GpuMonitorOptions& options) {
  gpu_ = std::make_unique<device::GpuMonitor>(uuid, options);
}

void ResourceWatch::begin_steps() {
  last_fill_ = Clock::now();
  cpu_s_at_last_fill_ = report::process_usage().cpu_s.value_or(0);
  if (!gpu_) return;
  gpu_->take();
  before_steps_ = gpu_->totals();
}

void ResourceWatch::stop() {
  if (gpu_) gpu_->stop();
}

report::Usage ResourceWatch::own() const {
  report::Usage usage = report::process_usage();
  if (!gpu_) return usage;
  const device::GpuTotals in_steps = gpu_in_steps();
  usage.energy_wh = in_steps.energy_wh;
  usage.gpu_watched_s = in_steps.watched_s;
  usage.gpu_busy_s = in_steps.busy_s;
  return usage;
}

report::Usage ResourceWatch::of_all_ranks() const {
  report::Usage usage = own();
  for (const report::Usage& other : others_) usage = usage + other;
  return usage;
}

void ResourceWatch::put(RankFigures& figures) const {
  const report::Usage usage = own();
  figures.cpu_s = usage.cpu_s.value_or(kUnknown);
  figures.energy_wh = usage.energy_wh.value_or(kUnknown);
  figures.gpu_watched_s = usage.gpu_watched_s;
  figures.gpu_busy_s = usage.gpu_busy_s;
}

void ResourceWatch::take(const std::vector<RankFigures>& figures, int own_rank) {
  others_.clear();
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    if (static_cast<int>(rank) == own_rank) continue;
    const RankFigures& other = figures[rank];
    others_.push_back({known(other.cpu_s), known(other.energy_wh), other.gpu_watched_s, other.gpu_busy_s});
  }
}

void ResourceWatch::fill(report::StepRecord& record) {
  const Clock::time_point now = Clock::now();
  const double cpu_s = report::process_usage().cpu_s.value_or(0);
  const double wall_s = std::chrono::duration<double>(now - last_fill_).count();
  if (wall_s > 0) record.cpu_percent = 100 * (cpu_s - cpu_s_at_last_fill_) / wall_s;
  last_fill_ = now;
  cpu_s_at_last_fill_ = cpu_s;
  record.host_memory_gib = report::host_memory_gib();
  if (!gpu_) return;
  const device::GpuFigures gpu = gpu_->take();
  record.gpu_utilization = gpu.utilization;
  record.gpu_power_w = gpu.power_w;
  record.gpu_temperature_c = gpu.temperature_c;
  record.gpu_clock_mhz = gpu.clock_mhz;
  record.gpu_memory_used_gib = gpu.memory_used_gib;
  for (const device::Throttle reason : gpu.throttle) record.gpu_throttle.emplace_back(device::to_string(reason));
}

std::optional<double> ResourceWatch::gpu_utilization() const { return gpu_ ? gpu_->utilization() : std::nullopt; }

device::GpuTotals ResourceWatch::gpu_in_steps() const {
  return gpu_ ? gpu_->totals() - before_steps_ : device::GpuTotals();
}

std::optional<report::Price> find_price(std::optional<double> given, const std::string& gpu, int num_gpus,
                                        const std::filesystem::path& gpu_table) {
  if (given) return report::Price{*given, num_gpus, "profile"};
  if (gpu.empty() || gpu_table.empty()) return std::nullopt;
  try {
    const auto table = device::read_gpu_table(gpu_table);
    const auto found = std::ranges::find(table, gpu, &device::GpuFacts::device_name);
    if (found != table.end()) return report::Price{found->price_per_hour, num_gpus, "GPU table"};
  } catch (const Error& error) {
    log_warning(std::string("the cost of the run is unknown: ") + error.what());
  }
  return std::nullopt;
}

double StartupTimes::end_phase(const std::string& phase) {
  if (is_finished_) return 0;
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  const auto found = std::ranges::find(phases_, phase, &std::pair<std::string, double>::first);
  if (found == phases_.end()) {
    phases_.emplace_back(phase, seconds);
  } else {
    found->second += seconds;
  }
  return seconds;
}

}  // namespace lora_train::run
