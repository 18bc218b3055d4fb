// Watches the GPU of this process while a run goes on: utilization, power, energy, temperature, clock and what slows it down, as
// NVML (libnvidia-ml.so.1, opened at run time) knows them. Source: docs.nvidia.com/deploy/nvml-api, group nvmlDeviceQueries.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::device {

/// Why a GPU runs at a lower clock than it could.
enum class Throttle {
  kPowerCap,          ///< it draws as much power as it may: normal at full load
  kThermal,           ///< it is hotter than it should be for long
  kHardwareThermal,   ///< it is so hot that it halves its clock at least
  kPowerBrake,        ///< the power supply of the machine asks for less
  kHardwareSlowdown,  ///< it slows itself down, and does not say why
};
inline constexpr std::size_t kNumThrottles = 5;
/// "power_cap", "thermal", "hw_thermal", "power_brake", "hw_slowdown"
const char* to_string(Throttle reason);

/// What the GPU did in a stretch of time: means over the readings in it. Empty: not known.
struct GpuFigures {
  std::optional<double> utilization;  ///< 0 to 100: percent of the time in which a kernel ran
  std::optional<double> power_w, temperature_c, clock_mhz;
  std::vector<Throttle> throttle;         ///< those of any reading, in order
  std::optional<double> memory_used_gib;  ///< by all processes
};

/// Sums since the monitor began.
struct GpuTotals {
  std::optional<double> energy_wh;  ///< by the GPU's own counter, else the integral of power
  double watched_s = 0;             ///< time with known utilization
  double busy_s = 0;                ///< the part of it in which a kernel ran
  long num_readings = 0;
  std::array<long, kNumThrottles> num_throttled = {};  ///< readings with that reason
};

struct GpuMonitorOptions {
  std::string library = "libnvidia-ml.so.1";
  std::chrono::milliseconds interval{1000};  ///< between readings, each of which takes the driver a millisecond or so
};

/// Reads the sensors in a thread of its own. Whoever asks gets what was read last and never waits for the driver. Logs once what
/// cannot be known, and why; never throws for it. Thread-safe.
class GpuMonitor {
 public:
  /// Returns at once. `uuid` as in Gpu::uuid.
  explicit GpuMonitor(const std::string& uuid, const GpuMonitorOptions& options = {});
  ~GpuMonitor();  ///< as stop()
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// The figures since the last call; those of the last reading where there was none since.
  GpuFigures take();
  GpuTotals totals() const;
  /// Of the last reading.
  std::optional<double> utilization() const;
  /// Reads once more and ends the thread. Of a driver that does not answer within 2 s, the thread is left behind.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too
};

}  // namespace lora_train::device
