// What keeps the device from computing: waiting for data, a GPU that slows down, micro-batches that are too small for it.
#pragma once

#include <array>
#include <cstdint>

#include "lora_train/device/gpu_monitor.h"
#include "lora_train/run/run_state.h"

namespace lora_train::run {

/// What decides the advice.
struct BottleneckFacts {
  bool is_leader = true;                        ///< other ranks warn of their GPU alone
  std::int64_t num_workers = 0, num_cores = 1;  ///< dataloader_num_workers, and cores that this process may use
  bool is_staged = false;                       ///< stage_dir
  std::int64_t micro_batch_size = 1, rows_per_step = 1;  ///< of this rank
  double tokens_per_micro_batch = 0;
};

BottleneckFacts bottleneck_facts(const Run& run);

/// Warns of each bottleneck once. Not thread-safe.
class Bottlenecks {
 public:
  explicit Bottlenecks(const BottleneckFacts& facts) : facts_(facts) {}

  /// A finished step. `gpu` as ResourceWatch::gpu_in_steps() has it. The first step of a process, which waits for the loader to start,
  /// does not count.
  void add(double step_ms, double data_wait_ms, const device::GpuTotals& gpu);

 private:
  void judge_data_wait();
  void judge_gpu(const device::GpuTotals& gpu);
  void judge_throttle(const device::GpuTotals& since);

  const BottleneckFacts facts_;
  bool has_begun_ = false;
  long num_steps_ = 0;  ///< of the window, with their sums
  double step_ms_ = 0, wait_ms_ = 0;
  device::GpuTotals gpu_begin_;  ///< of the window of readings
  double gpu_step_ms_ = 0, gpu_wait_ms_ = 0;
  bool has_named_wait_ = false, has_named_idle_ = false;
  std::array<bool, device::kNumThrottles> has_named_throttle_ = {};
};

}  // namespace lora_train::run
