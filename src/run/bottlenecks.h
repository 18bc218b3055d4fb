// The times of all ranks, and what keeps the device from computing: waiting for data, a GPU that slows down, micro-batches that
// are too small for it.
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

/// Warns of the slowest rank, once for each, when it costs more than 5% of the step time over 50 steps. Not thread-safe.
class RankTimes {
 public:
  /// The figures of a finished step, by rank, and its time. Figures without compute_ms, as the first ones of a GPU, do not count.
  void add(const std::vector<RankFigures>& figures, double step_ms);
  /// The means of the steps since the last call; empty if there was none.
  report::RankRecord take();
  /// "ranks: computing takes 210.0 to 240.0 ms of a step of 260.0 ms; rank 3 is the slowest and costs 2.1% of the time"
  std::string in_words() const;

 private:
  struct Sums {
    std::vector<RankFigures> ranks;  ///< sums over steps; memory: the last
    double step_ms = 0;
    double num_steps = 0;

    void add(const std::vector<RankFigures>& figures, double step_milliseconds);
  };
  struct Slowest {
    std::size_t rank = 0;
    double ms = 0;     ///< per step, computing and waiting for data
    double other = 0;  ///< the median of the others
    double share = 0;  ///< of the step time that it costs
  };
  static Slowest slowest_of(const Sums& sums);
  void warn();

  Sums since_record_, since_warning_, all_;
  std::vector<bool> is_named_;
};

}  // namespace lora_train::run
