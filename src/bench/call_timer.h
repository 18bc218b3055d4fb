// Records when each kernel call of a step began and how long it took.
#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::bench {

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

/// Moments of a device: on a GPU events in its stream, which the host may pass; on a CPU the clock.
class Moments {
 public:
  explicit Moments(const plan::RunDevice& device) : device_(device) {}
  std::size_t mark();  ///< returns the moment's index
  /// The device must have passed both.
  double us_between(std::size_t from, std::size_t to) const;

 private:
  plan::RunDevice device_;
  std::deque<c10::Event> events_;
  std::vector<std::chrono::steady_clock::time_point> times_;
};

/// The recorder while it lives. Times are read in finish().
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

/// Writes a Chrome trace (chrome://tracing, ui.perfetto.dev) of a step: spans, and in them the calls with class, bytes, FLOPs
/// and sizes. Throws IoError.
void write_chrome_trace(const std::filesystem::path& file, const TimedStep& step, const std::string& title);

}  // namespace lora_train::bench
