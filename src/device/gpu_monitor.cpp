#include "lora_train/device/gpu_monitor.h"

#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "driver.h"
#include "lora_train/base/log.h"

namespace lora_train::device {
namespace {

/// Empty members are unknown to NVML.
struct SensorReading {
  std::optional<unsigned> utilization;  ///< percent of the driver's last sample period (up to 1 s) that a kernel ran
  std::optional<unsigned> power_mw, temperature_c, clock_mhz;
  std::optional<unsigned long long> energy_mj;      ///< since the driver was loaded
  std::optional<unsigned long long> throttle_bits;  ///< kNvmlPowerCap, ...
  std::optional<unsigned long long> memory_bytes;   ///< in use, by all processes
  bool is_lost = false;                             ///< the GPU has failed, and so will all later readings
};

constexpr const char* kSensorNames[] = {"utilization", "power",      "energy counter", "temperature",
                                        "clock",       "throttling", "memory"};

/// Keeps NVML initialised while it lives. For a slice of a GPU (MIG), temperature, clock and throttling are those of
/// the whole GPU; power and energy, which slices share, are unknown. Not thread-safe.
class GpuSensors {
 public:
  /// `uuid` as in Gpu::uuid, to find the GPU that CUDA_VISIBLE_DEVICES chose.
  GpuSensors(const std::string& library, const std::string& uuid)
      : nvml_{{SharedLibrary(library)}}, problem_(nvml_.library.problem()) {
    if (!problem_.empty()) return;
    if (nvml_.throttle_reasons == nullptr)  // its name before driver 535
      nvml_.throttle_reasons = nvml_.library.find_if_there("nvmlDeviceGetCurrentClocksThrottleReasons");
    NvmlResult result = nvml_.init();
    is_initialized_ = result == kNvmlSuccess;
    if (is_initialized_) result = nvml_.device_by_uuid(uuid.c_str(), &device_);
    if (result != kNvmlSuccess) {
      problem_ = fmt::format("{}: {}", library, nvml_.error_string(result));
      return;
    }
    gpu_ = device_;
    if (!uuid.starts_with("MIG-")) return;
    if (nvml_.gpu_of_slice == nullptr || nvml_.gpu_of_slice(device_, &gpu_) != kNvmlSuccess) gpu_ = device_;
    nvml_.power = nullptr;
    nvml_.energy = nullptr;
    for (const Sensor sensor : {kPower, kEnergy}) miss(sensor, "only known for the whole GPU, and this is a slice");
  }
  ~GpuSensors() {
    if (is_initialized_) nvml_.shutdown();
  }
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  /// Why nothing can be read; empty if anything can.
  const std::string& problem() const { return problem_; }

  SensorReading read() {
    using Bits = unsigned long long;
    SensorReading reading;
    const auto utilization = ask<NvmlUtilization>(reading, kUtilization, nvml_.utilization, device_);
    if (utilization) reading.utilization = utilization->gpu;
    reading.power_mw = ask<unsigned>(reading, kPower, nvml_.power, gpu_);
    reading.energy_mj = ask<Bits>(reading, kEnergy, nvml_.energy, gpu_);
    reading.temperature_c = ask<unsigned>(reading, kTemperature, nvml_.temperature, gpu_, kNvmlTemperatureGpu);
    reading.clock_mhz = ask<unsigned>(reading, kClock, nvml_.clock, gpu_, kNvmlClockSm);
    reading.throttle_bits = ask<Bits>(reading, kThrottling, nvml_.throttle_reasons, gpu_);
    const auto memory = ask<NvmlMemory>(reading, kMemory, nvml_.memory, device_);
    if (memory) reading.memory_bytes = memory->used;
    return reading;
  }

  /// The sensors that read() has missed since the last call, with NVML's reason: "power (Not Supported), clock (...)".
  /// Names each sensor once.
  std::string take_unknown() { return std::exchange(unknown_, {}); }

 private:
  enum Sensor { kUtilization, kPower, kEnergy, kTemperature, kClock, kThrottling, kMemory, kNumSensors };

  /// Calls function(arguments..., &value), if the driver has it.
  template <typename Value, typename Function, typename... Arguments>
  std::optional<Value> ask(SensorReading& reading, Sensor sensor, Function function, Arguments... arguments) {
    Value value{};
    const NvmlResult result = function != nullptr ? function(arguments..., &value) : kNvmlFunctionNotFound;
    if (result == kNvmlSuccess) return value;
    reading.is_lost = reading.is_lost || result == kNvmlGpuIsLost;
    miss(sensor, nvml_.error_string(result));
    return std::nullopt;
  }

  void miss(Sensor sensor, const std::string& reason) {
    if (std::exchange(is_missed_[sensor], true)) return;
    unknown_ += fmt::format("{}{} ({})", unknown_.empty() ? "" : ", ", kSensorNames[sensor], reason);
  }

  NvmlSensors nvml_;
  NvmlDevice device_ = nullptr;  ///< the GPU, or a slice of it
  NvmlDevice gpu_ = nullptr;     ///< the whole GPU
  bool is_initialized_ = false;
  std::array<bool, kNumSensors> is_missed_ = {};
  std::string problem_, unknown_;
};

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{2};
constexpr double kJoulesPerWattHour = 3600;
constexpr const char* kThrottleNames[kNumThrottles] = {"power_cap", "thermal", "hw_thermal", "power_brake",
                                                       "hw_slowdown"};
constexpr unsigned long long kThrottleBits[kNumThrottles] = {kNvmlPowerCap, kNvmlThermal, kNvmlHardwareThermal,
                                                             kNvmlPowerBrake, kNvmlHardwareSlowdown};

/// Clears the general bit of a slowdown if its cause has its own bit.
unsigned long long without_general_bit(unsigned long long bits) {
  return (bits & (kNvmlHardwareThermal | kNvmlPowerBrake)) != 0 ? bits & ~kNvmlHardwareSlowdown : bits;
}

/// A mean over readings; empty if there are none.
struct Mean {
  double sum = 0;
  long count = 0;

  template <typename Value>
  void add(const std::optional<Value>& value) {
    if (!value) return;
    sum += static_cast<double>(*value);
    ++count;
  }
  std::optional<double> value() const {
    return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
  }
};

/// Sums of readings.
struct Readings {
  Mean utilization, power_mw, temperature_c, clock_mhz, memory_bytes;
  unsigned long long throttle_bits = 0;
  bool is_empty = true;

  void add(const SensorReading& reading) {
    utilization.add(reading.utilization);
    power_mw.add(reading.power_mw);
    temperature_c.add(reading.temperature_c);
    clock_mhz.add(reading.clock_mhz);
    memory_bytes.add(reading.memory_bytes);
    throttle_bits |= without_general_bit(reading.throttle_bits.value_or(0));
    is_empty = false;
  }
  GpuFigures figures() const {
    GpuFigures result;
    result.utilization = utilization.value();
    if (const auto power = power_mw.value()) result.power_w = *power / 1000;
    result.temperature_c = temperature_c.value();
    result.clock_mhz = clock_mhz.value();
    if (const auto bytes = memory_bytes.value()) result.memory_used_gib = *bytes / (1 << 30);
    for (std::size_t i = 0; i < kNumThrottles; ++i) {
      if ((throttle_bits & kThrottleBits[i]) != 0) result.throttle.push_back(static_cast<Throttle>(i));
    }
    return result;
  }
};

}  // namespace

GpuTotals operator-(GpuTotals now, const GpuTotals& begin) {
  now.watched_s -= begin.watched_s;
  now.busy_s -= begin.busy_s;
  now.num_readings -= begin.num_readings;
  for (std::size_t i = 0; i < kNumThrottles; ++i) now.num_throttled[i] -= begin.num_throttled[i];
  return now;
}

const char* to_string(Throttle reason) { return kThrottleNames[static_cast<std::size_t>(reason)]; }

struct GpuMonitor::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool is_stopping = false, has_ended = false;
  Readings since_take;
  SensorReading last;  ///< its unknown figures are unknown now
  std::optional<Clock::time_point> last_time;
  GpuTotals totals;

  // Call it with the lock held. The energy counter restarts when the driver is loaded.
  void add_energy(const SensorReading& now, double seconds) {
    if (!now.energy_mj && !now.power_mw) return;
    if (!totals.energy_wh) totals.energy_wh = 0;
    double joules = 0;
    if (now.energy_mj && last.energy_mj) {
      if (*now.energy_mj > *last.energy_mj) joules = static_cast<double>(*now.energy_mj - *last.energy_mj) / 1000;
    } else if (now.power_mw && last.power_mw) {
      joules = seconds * (static_cast<double>(*now.power_mw) + static_cast<double>(*last.power_mw)) / 2000;
    }
    *totals.energy_wh += joules / kJoulesPerWattHour;
  }

  void add(const SensorReading& now, Clock::time_point time) {
    const std::lock_guard lock(mutex);
    const double seconds = last_time ? std::chrono::duration<double>(time - *last_time).count() : 0;
    add_energy(now, seconds);
    if (now.utilization) {
      totals.watched_s += seconds;
      totals.busy_s += seconds * *now.utilization / 100;
    }
    const unsigned long long bits = without_general_bit(now.throttle_bits.value_or(0));
    for (std::size_t i = 0; i < kNumThrottles; ++i) totals.num_throttled[i] += (bits & kThrottleBits[i]) != 0 ? 1 : 0;
    ++totals.num_readings;
    since_take.add(now);
    last = now;
    last_time = time;
  }

  /// Waits for the next reading. Returns false if it is the last.
  bool wait(std::chrono::milliseconds interval) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, interval, [this] { return is_stopping; });
  }

  void watch(const std::string& uuid, const GpuMonitorOptions& options) {
    GpuSensors sensors(options.library, uuid);
    if (!sensors.problem().empty()) return log_info("the GPU's figures are unknown: " + sensors.problem());
    for (bool goes_on = true, is_first = true;; is_first = false) {
      const SensorReading reading = sensors.read();
      const std::string unknown = sensors.take_unknown();
      add(reading, Clock::now());
      if (reading.is_lost) return log_warning("the GPU's figures end here: NVML reports the GPU as lost");
      if (!unknown.empty()) {
        log_info(std::string("unknown figures of the GPU") + (is_first ? ": " : " from now on: ") + unknown);
      }
      if (!goes_on) return;
      goes_on = wait(options.interval);
    }
  }

  void end() {
    const std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }
};

GpuMonitor::GpuMonitor(const std::string& uuid, const GpuMonitorOptions& options) : state_(std::make_shared<State>()) {
  try {
    std::thread([state = state_, uuid, options] {
      state->watch(uuid, options);
      state->end();
    }).detach();  // stop() waits for its end, but not for a hanging driver
  } catch (const std::system_error& error) {
    state_->has_ended = true;
    log_info(std::string("the GPU's figures are unknown: cannot start a thread: ") + error.what());
  }
}

GpuMonitor::~GpuMonitor() { stop(); }

void GpuMonitor::stop() {
  std::unique_lock lock(state_->mutex);
  state_->is_stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [this] { return state_->has_ended; });
}

GpuFigures GpuMonitor::take() {
  const std::lock_guard lock(state_->mutex);
  Readings readings = std::exchange(state_->since_take, {});
  if (readings.is_empty && state_->last_time) readings.add(state_->last);
  return readings.figures();
}

GpuTotals GpuMonitor::totals() const {
  const std::lock_guard lock(state_->mutex);
  return state_->totals;
}

std::optional<double> GpuMonitor::utilization() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last.utilization;
}

}  // namespace lora_train::device
