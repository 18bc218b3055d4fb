// What the processes of a run use while it goes on: processor time, memory, and the GPU of each rank.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/device/gpu_monitor.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/report/run_times.h"
#include "lora_train/run/step_scalars.h"

namespace lora_train::run {

/// Of this process, and of the other ranks as far as they have said it: with each step (RankFigures), and at the end. Not
/// thread-safe; the thread that reads the GPU's sensors is the monitor's own.
class ResourceWatch {
 public:
  /// Watches a GPU too, from here on.
  void watch_gpu(const std::string& uuid, const device::GpuMonitorOptions& options = {});
  /// Utilization counts from here on.
  void begin_steps();
  /// Ends the thread that reads the sensors; what they said last stays.
  void stop();

  report::Usage own() const;
  /// The sum over all ranks.
  report::Usage of_all_ranks() const;
  /// Puts what this rank uses into what it tells the others.
  void put(RankFigures& figures) const;
  /// What the others have told, by rank.
  void take(const std::vector<RankFigures>& figures, int own_rank);

  /// Fills cpu_percent, host_memory_gib and gpu with what there was since the last call.
  void fill(report::TrainRecord& record);
  /// 0 to 100, of the last second; empty: not known.
  std::optional<double> gpu_utilization() const;
  /// Since begin_steps(). Zero without a GPU.
  device::GpuTotals gpu_in_steps() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<device::GpuMonitor> gpu_;
  device::GpuTotals before_steps_;
  std::vector<report::Usage> others_;
  Clock::time_point last_fill_ = Clock::now();
  double cpu_s_at_last_fill_ = report::process_usage().cpu_s.value_or(0);
};

}  // namespace lora_train::run
