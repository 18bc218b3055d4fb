// Watches the GPU of this process during a run: utilization, power, energy, temperature, clock and throttling, as
// reported by NVML (libnvidia-ml.so.1, opened at run time). Source: docs.nvidia.com/deploy/nvml-api, group
// nvmlDeviceQueries.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::device {

/// Why a GPU runs below its full clock.
enum class Throttle {
  kPowerCap,          ///< it draws as much power as allowed: normal at full load
  kThermal,           ///< it is too hot for continuous operation
  kHardwareThermal,   ///< it is so hot that it at least halves its clock
  kPowerBrake,        ///< the machine's power supply asks it to draw less
  kHardwareSlowdown,  ///< it slows itself down without saying why
};
inline constexpr std::size_t kNumThrottles = 5;
/// "power_cap", "thermal", "hw_thermal", "power_brake", "hw_slowdown"
const char* to_string(Throttle reason);

/// The GPU's activity over a period: means over its readings. Empty if unknown.
struct GpuFigures {
  std::optional<double> utilization;  ///< 0 to 100: percent of the time that a kernel ran
  std::optional<double> power_w, temperature_c, clock_mhz;
  std::vector<Throttle> throttle;         ///< reasons in any reading, in order
  std::optional<double> memory_used_gib;  ///< by all processes
};

/// Sums since the monitor began.
struct GpuTotals {
  std::optional<double> energy_wh;  ///< from the GPU's counter, else the integral of power
  double watched_s = 0;             ///< time with known utilization
  double busy_s = 0;                ///< part of it in which a kernel ran
  long num_readings = 0;
  std::array<long, kNumThrottles> num_throttled = {};  ///< readings with that reason
};
/// The totals since `begin`, but for energy_wh.
GpuTotals operator-(GpuTotals now, const GpuTotals& begin);

struct GpuMonitorOptions {
  std::string library = "libnvidia-ml.so.1";
  std::chrono::milliseconds interval{1000};  ///< between readings, which take the driver about a millisecond each
};

/// Reads the sensors in its own thread. Callers get the latest reading and never wait for the driver. Logs once which
/// figures are unavailable, and why; never throws for that. Thread-safe.
class GpuMonitor {
 public:
  /// Returns at once. `uuid` as in Gpu::uuid.
  explicit GpuMonitor(const std::string& uuid, const GpuMonitorOptions& options = {});
  ~GpuMonitor();  ///< calls stop()
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// The figures since the last call, or of the last reading if there was none since.
  GpuFigures take();
  GpuTotals totals() const;
  /// Utilization in the last reading.
  std::optional<double> utilization() const;
  /// Reads once more and ends the thread. If the driver does not answer within 2 s, abandons the thread.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
};

}  // namespace lora_train::device
