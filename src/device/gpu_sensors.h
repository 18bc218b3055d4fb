// The sensors of one GPU, as NVML reads them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "driver.h"

namespace lora_train::device {

/// Empty: NVML does not say.
struct SensorReading {
  std::optional<unsigned>
      utilization;  ///< percent of the driver's last sample period (up to 1 s) in which a kernel ran
  std::optional<unsigned> power_mw, temperature_c, clock_mhz;
  std::optional<unsigned long long> energy_mj;      ///< since the driver was loaded
  std::optional<unsigned long long> throttle_bits;  ///< kNvmlPowerCap, ...
  std::optional<unsigned long long> memory_bytes;   ///< in use, by all processes
  bool is_lost = false;                             ///< the GPU has failed: no later reading will know more
};

/// NVML stays initialised as long as it lives. Of a slice of a GPU (MIG), temperature, clock and throttling are those of the whole
/// GPU; power and energy, which other slices share, are not known. Not thread-safe.
class GpuSensors {
 public:
  /// `uuid` as in Gpu::uuid, so that it is the GPU that CUDA_VISIBLE_DEVICES chose.
  GpuSensors(const std::string& library, const std::string& uuid);
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  /// Why nothing can be read; empty if something can.
  const std::string& problem() const { return problem_; }
  SensorReading read();
  /// What read() has missed since the last call, with NVML's reason: "power (Not Supported), clock (...)". Names each sensor once.
  std::string take_unknown() { return std::exchange(unknown_, {}); }

 private:
  enum Sensor { kUtilization, kPower, kEnergy, kTemperature, kClock, kThrottling, kMemory, kNumSensors };
  template <typename Value, typename Call>
  std::optional<Value> ask(Sensor sensor, bool has_function, const Call& call, SensorReading& reading);
  void miss(Sensor sensor, const std::string& reason);

  NvmlSensors nvml_{};
  NvmlDevice device_ = nullptr;  ///< the GPU, or a slice of it
  NvmlDevice gpu_ = nullptr;     ///< the whole GPU
  bool is_initialized_ = false;
  std::array<bool, kNumSensors> is_missed_ = {};
  std::string problem_, unknown_;
};

}  // namespace lora_train::device
