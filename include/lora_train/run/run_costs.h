// The costs of a run: startup seconds, processor time, memory, the GPU of each rank, and the hourly price.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/device/gpu_monitor.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/report/run_times.h"
#include "lora_train/run/step_scalars.h"

namespace lora_train::run {

/// Resource usage of this process, and of the other ranks as they last reported it: with each step (RankFigures) and at
/// the end. Not thread-safe; the GPU monitor reads the sensors in its own thread.
class ResourceWatch {
 public:
  /// Starts watching a GPU as well.
  void watch_gpu(const std::string& uuid, const device::GpuMonitorOptions& options = {});
  /// Starts counting utilization.
  void begin_steps();
  /// Ends the thread that reads the sensors; the last readings stay.
  void stop();

  report::Usage own() const;
  /// The sum over all ranks.
  report::Usage of_all_ranks() const;
  /// Writes this rank's usage into the figures it sends to the others.
  void put(RankFigures& figures) const;
  /// Stores the figures of the other ranks, by rank.
  void take(const std::vector<RankFigures>& figures, int own_rank);

  /// Fills cpu_percent, host_memory_gib and gpu for the time since the last call.
  void fill(report::StepRecord& record);
  /// Utilization of the last second, 0 to 100; empty if unknown.
  std::optional<double> gpu_utilization() const;
  /// Totals since begin_steps(). Zero without a GPU.
  device::GpuTotals gpu_in_steps() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<device::GpuMonitor> gpu_;
  device::GpuTotals before_steps_;
  std::vector<report::Usage> others_;
  Clock::time_point last_fill_ = Clock::now();
  double cpu_s_at_last_fill_ = report::process_usage().cpu_s.value_or(0);
};

/// The one place that decides the price: `given` (gpu_price_per_hour) if the profile has it, else the price of `gpu`
/// (the driver's name for it) in the GPU table, if it is listed; nothing on a CPU (`gpu` empty) without the key. Warns
/// if the table cannot be read. num_gpus is 1 on a CPU, where the price is that of the machine.
std::optional<report::Price> find_price(std::optional<double> given, const std::string& gpu, int num_gpus,
                                        const std::filesystem::path& gpu_table);

/// Seconds per startup phase, in order. Not thread-safe.
class StartupTimes {
 public:
  using Clock = std::chrono::steady_clock;
  /// Ends `phase`, which began at the previous call or at construction, and returns its seconds. Phases with the same
  /// name add up. Does nothing after finish().
  double end_phase(const std::string& phase);
  void finish() { is_finished_ = true; }

  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }

 private:
  Clock::time_point last_ = Clock::now();
  std::vector<std::pair<std::string, double>> phases_;
  bool is_finished_ = false;
};

}  // namespace lora_train::run
