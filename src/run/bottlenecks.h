// Compares the times of all ranks, and finds what keeps the device from computing: waiting for data, a GPU that slows
// down, micro-batches that are too small.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/device/gpu_monitor.h"
#include "lora_train/report/metrics_writer.h"
#include "lora_train/run/run_state.h"
#include "lora_train/run/step_scalars.h"

namespace lora_train::run {

/// The facts that decide the advice.
struct BottleneckFacts {
  bool is_leader = true;                        ///< other ranks only warn about their GPU
  std::int64_t num_workers = 0, num_cores = 1;  ///< dataloader_num_workers, and cores that this process may use
  std::int64_t micro_batch_size = 1, rows_per_step = 1;  ///< on this rank
  double tokens_per_micro_batch = 0;
};

BottleneckFacts bottleneck_facts(const Run& run);

/// Warns about each bottleneck once. Not thread-safe.
class Bottlenecks {
 public:
  explicit Bottlenecks(const BottleneckFacts& facts) : facts_(facts) {}

  /// Adds a finished step. `gpu` comes from ResourceWatch::gpu_in_steps(). The first step of a process, which waits for
  /// the loader to start, does not count.
  void add(double step_ms, double data_wait_ms, const device::GpuTotals& gpu);

 private:
  void judge_data_wait();
  void judge_gpu(const device::GpuTotals& gpu);
  void judge_throttle(const device::GpuTotals& since);

  const BottleneckFacts facts_;
  bool has_begun_ = false;
  long num_steps_ = 0;  ///< steps in the window, with their sums below
  double step_ms_ = 0, wait_ms_ = 0;
  device::GpuTotals gpu_begin_;  ///< start of the window of readings
  double gpu_step_ms_ = 0, gpu_wait_ms_ = 0;
  bool has_named_wait_ = false, has_named_idle_ = false;
  std::array<bool, device::kNumThrottles> has_named_throttle_ = {};
};

/// Warns about the slowest rank, once per rank, when it costs more than 5% of the step time over 50 steps. Not
/// thread-safe.
class RankTimes {
 public:
  /// Adds the figures of a finished step, by rank, and its time. Figures without compute_ms, such as a GPU's first
  /// ones, do not count.
  void add(const std::vector<RankFigures>& figures, double step_ms);
  /// Sets rank_compute_ms and so on to the means of the steps since the last call; to empty lists if there were none.
  void take(report::StepRecord& record);
  /// "ranks: computing and waiting for data take 210.0 to 240.0 ms of a 260.0 ms step; rank 3 is the slowest and costs
  /// 2.1% of the time"
  std::string in_words() const;

 private:
  struct Sums {
    std::vector<RankFigures> ranks;  ///< sums over steps; for memory, the last value
    double step_ms = 0;
    double num_steps = 0;

    void add(const std::vector<RankFigures>& figures, double step_milliseconds);
  };
  struct Slowest {
    std::size_t rank = 0;
    double ms = 0;     ///< per step: computing and waiting for data
    double other = 0;  ///< the median of the others
    double share = 0;  ///< share of the step time that it costs
  };
  static Slowest slowest_of(const Sums& sums);
  void warn();

  Sums since_record_, since_warning_, all_;
  std::vector<bool> is_named_;
};

}  // namespace lora_train::run
