// Measurements for `bench`: times of calls on a device, the work that kernels report
// (kernels/accounting/work_record.h), other LibTorch operations, and rates.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/bench/bench.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/run/run_state.h"

namespace lora_train::bench {

inline std::string name_of(kernels::WorkClass work_class) {
  return std::string(kernels::kWorkClassNames[static_cast<std::size_t>(work_class)]);
}

/// The work recorder while it lives. Counts LibTorch operations outside of kernels as class copy, under their own names
/// ("aten::zero_"), except views and empty buffers. Only for meta and CPU tensors: it would slow down a step on a GPU.
class WorkCounter : public kernels::WorkRecorder {
 public:
  WorkCounter();
  ~WorkCounter() override;
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  /// Names the memory of a tensor, so that passes over it can be told apart.
  void name_buffer(const at::Tensor& tensor, const std::string& name);

  /// Resets the counts, but not the names.
  void reset() {
    classes_ = {};
    kernels_.clear();
    passes_.clear();
    residual_bytes_ = 0;
  }

  void begin(const kernels::Work&) override { is_inside_ = true; }
  void end(const kernels::Work& work) override;
  bool is_inside_kernel() const { return is_inside_; }
  void add(const kernels::Work& work);

  const BenchWork& of_class(kernels::WorkClass work_class) const {
    return classes_[static_cast<std::size_t>(work_class)];
  }
  /// By class and name: "gemm gemm", "copy aten::zero_".
  const std::map<std::string, BenchWork>& kernels() const { return kernels_; }
  /// Bytes of residuals that GEMMs read to add them in their epilogue.
  std::int64_t residual_bytes() const { return residual_bytes_; }
  /// Passes over activations that move at least min_bytes each, in the order of their first occurrence.
  std::vector<BenchPass> passes(std::int64_t min_bytes) const;

 private:
  struct Listener;
  std::string buffer_of(const kernels::WorkOperand& operand) const;

  std::array<BenchWork, kernels::kWorkClassNames.size()> classes_{};
  std::map<std::string, BenchWork> kernels_;
  std::map<const void*, std::string> buffers_;
  std::vector<BenchPass> passes_;
  std::vector<at::Tensor> named_;  ///< keeps their memory alive, so that no other tensor gets its address
  std::int64_t residual_bytes_ = 0;
  bool is_inside_ = false;
  std::unique_ptr<Listener> listener_;
};

/// Times are in microseconds from the beginning of the step.
struct TimedCall {
  std::string name, sizes;
  kernels::WorkClass work_class = kernels::WorkClass::kCopy;
  std::int64_t bytes_read = 0, bytes_written = 0, flops = 0;
  double start_us = 0, duration_us = 0;
};

/// A part of a step that contains others: "step 8", "micro-batch 1".
struct TimedSpan {
  std::string name;
  double start_us = 0, duration_us = 0;
};

struct TimedStep {
  std::vector<TimedSpan> spans;  ///< outer spans first
  std::vector<TimedCall> calls;
  double duration_us() const { return spans.empty() ? 0 : spans.front().duration_us; }
};

/// Moments in time on a device: events in the stream of a GPU, which the host may run ahead of, or the clock on a CPU.
class Moments {
 public:
  explicit Moments(const plan::RunDevice& device) : device_(device) {}
  std::size_t mark();  ///< returns the moment's index
  /// The device must have passed both moments.
  double us_between(std::size_t from, std::size_t to) const;

 private:
  plan::RunDevice device_;
  std::deque<c10::Event> events_;
  std::vector<std::chrono::steady_clock::time_point> times_;
};

/// The work recorder while it lives. finish() reads the times.
class CallTimer : public kernels::WorkRecorder {
 public:
  explicit CallTimer(const plan::RunDevice& device);
  ~CallTimer() override;
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  void begin(const kernels::Work& work) override;
  void end(const kernels::Work& work) override;
  /// Begins a span, which ends at the next one of the same depth or at the end. Depth 0 is the step.
  void begin_span(const std::string& name, int depth);
  /// Waits for the device and returns the times.
  TimedStep finish();

 private:
  struct OpenSpan {
    std::string name;
    int depth = 0;
    std::size_t start = 0, end = 0;
  };
  void close_spans(int depth, std::size_t moment);

  plan::RunDevice device_;
  Moments moments_;
  std::vector<TimedCall> calls_;
  std::vector<std::pair<std::size_t, std::size_t>> call_moments_;
  std::vector<OpenSpan> spans_;
};

/// Writes a Chrome trace (chrome://tracing, ui.perfetto.dev) of a step: spans containing calls with class, bytes, FLOPs
/// and sizes. Throws IoError.
void write_chrome_trace(const std::filesystem::path& file, const TimedStep& step, const std::string& title);

// The rates that turn counted work into time, measured on this device: GEMMs, attention, memory. On a GPU, measures
// between events in its stream, over work enqueued back to back, GEMMs for at least a second, on random numbers,
// because a GPU's clock drops under load, and drops less over zeros. On a CPU, measures with the clock over a fifth of
// a second.

/// FLOPs per second over every GEMM of a full micro-batch without adapters, each as often as it occurs: forward and
/// input gradient of all linears and of the head, on the share of its tokens that the first step trains. run.tuning
/// chooses the algorithms; if null, heuristics do. Uses no buffers of the run.
double measure_gemm_rate(const run::Run& run);

/// All rates of such a micro-batch, with GPU and date. Attention uses the fastest backend.
BenchRates measure_rates(const run::Run& run);

/// Seconds per call of body(), called back to back for min_s on a GPU, after a warm-up.
template <class Body>
double seconds_back_to_back(const plan::RunDevice& device, double min_s, const Body& body) {
  constexpr double kWarmUpShare = 0.2;
  if (!device.is_cuda()) min_s = 0.2;
  const auto time = [&](int count) {
    Moments moments(device);
    moments.mark();
    for (int i = 0; i < count; ++i) body();
    moments.mark();
    plan::wait_for(device);
    return moments.us_between(0, 1) / 1e6 / count;
  };
  time(1);  // compiles, allocates, chooses algorithms
  const double once = time(1);
  if (once >= min_s) return once;
  const auto count_for = [&](double s) { return static_cast<int>(std::ceil(s / std::max(once, 1e-6))); };
  if (once < kWarmUpShare * min_s) time(count_for(kWarmUpShare * min_s));
  return time(count_for(min_s));
}

}  // namespace lora_train::bench
