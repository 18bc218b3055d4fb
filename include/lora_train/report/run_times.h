// Time, cost and resource usage of a run, summed over all its processes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/base/record_fields.h"

namespace lora_train::report {

/// Usage of one process, or the sum over several.
struct Usage {
  std::optional<double> cpu_s = {};      ///< processor time of all threads; empty: unknown
  std::optional<double> energy_wh = {};  ///< GPU energy; empty: unknown or no GPU
  double gpu_watched_s = 0;              ///< time with known GPU utilization, from the process's first step on
  double gpu_busy_s = 0;                 ///< the part of gpu_watched_s in which a kernel ran

  /// 0 to 100; empty if never known.
  std::optional<double> mean_gpu_utilization() const;
};

/// Sums each value that is known on both sides.
Usage operator+(const Usage& one, const Usage& other);

/// Usage of this process so far: cpu_s alone.
Usage process_usage();

/// In the order of summary.json and the table in report.html.
enum class Phase {
  kData,   ///< reading, tokenizing and packing examples, planning steps
  kLoad,   ///< model, device, weights, buffers
  kTune,   ///< measuring kernels, the rehearsal, recording graphs
  kTrain,  ///< steps
  kEvaluate,
  kSave,    ///< training paused for a checkpoint, and the wait for the last one
  kResult,  ///< writing adapter/ or model/
  kOther,   ///< the rest of the wall time
};
inline constexpr std::size_t kNumPhases = 8;
const char* name_of(Phase phase);

using NamedSeconds = std::vector<std::pair<std::string, double>>;

/// Time between processes is not counted.
struct RunTimes {
  std::array<double, kNumPhases> seconds = {};
  std::optional<double> cost_usd = {};  ///< empty without a price
  Usage usage = {};

  double& operator[](Phase phase) { return seconds[static_cast<std::size_t>(phase)]; }
  double operator[](Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  /// Sum of all phases.
  double wall_s() const;
  /// The phases by name, in order.
  NamedSeconds named() const;
  /// Inverse of named(). Ignores unknown names.
  static RunTimes of(const NamedSeconds& phases, std::optional<double> cost_usd, const Usage& usage = {});
};

/// "$0.0042", "$3.50", "$120"
std::string format_dollars(double amount);

/// The price of an hour.
struct Price {
  double of_gpu = 0;        ///< dollars per hour for one GPU, or for the machine if the run is on a CPU
  int num_gpus = 1;         ///< number paid for; 1 for a machine
  std::string source = {};  ///< "profile" or "GPU table"

  double per_hour() const { return of_gpu * num_gpus; }
  /// "$3.50 an hour (profile)", "8 x $3.50 an hour (GPU table)"
  std::string in_words() const;
};

/// A stretch of one phase, in seconds since the process began.
struct Span {
  Phase phase = Phase::kOther;
  double from_s = 0, to_s = 0;
};

/// Times the phases of a process and adds them to the run's earlier times. Not thread-safe.
class RunClock {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RunClock(Clock::time_point start = Clock::now()) : start_(start) {}

  /// For a resumed run: the run's times until its checkpoint. Time without a cost gets this process's price.
  void go_on_from(const RunTimes& earlier) { earlier_ = earlier; }
  /// Until then, a resumed run has the cost until its checkpoint; without a price, none.
  void set_price(const std::optional<Price>& price) {
    price_ = price;
    if (!price) earlier_.cost_usd.reset();
  }
  const std::optional<Price>& price() const { return price_; }
  /// Source of the usage since the start of this process. Default: process_usage(). total() calls it until stop().
  void set_usage(std::function<Usage()> usage) { usage_ = std::move(usage); }

  /// Counts the last `seconds` as this phase. Stretches must not overlap.
  void add(Phase phase, double seconds);
  /// Stops the clock: elapsed_s() and total() no longer change.
  void stop();

  double elapsed_s() const;                                ///< for this process
  double here(Phase phase) const { return here_[phase]; }  ///< for this process
  RunTimes total() const;                                  ///< for the run
  /// The stretches since the last call. Adjacent stretches of the same phase are merged.
  std::vector<Span> take_spans() { return std::exchange(spans_, {}); }

 private:
  Clock::time_point start_;
  std::optional<double> stopped_s_;
  std::function<Usage()> usage_ = process_usage;
  RunTimes earlier_, here_;
  std::optional<Price> price_;
  std::vector<Span> spans_;
};

/// A run's times from the last line of metrics.jsonl that has them, up to this step; empty if there is none.
std::optional<RunTimes> logged_times(const std::filesystem::path& metrics_file, long long step);

}  // namespace lora_train::report

template <>
constexpr auto lora_train::record_fields<lora_train::report::Usage>() {
  using U = report::Usage;
  return std::tuple{field("cpu_s", &U::cpu_s), field("energy_wh", &U::energy_wh),
                    field("gpu_watched_s", &U::gpu_watched_s), field("gpu_busy_s", &U::gpu_busy_s)};
}
