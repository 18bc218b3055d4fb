#include "gpu_sensors.h"

namespace lora_train::device {
namespace {

constexpr const char* kSensorNames[] = {"utilization", "power",      "energy counter", "temperature",
                                        "clock",       "throttling", "memory"};

}  // namespace

GpuSensors::GpuSensors(const std::string& library, const std::string& uuid) {
  if (!open_nvml_sensors(library, nvml_, problem_)) return;
  NvmlResult result = nvml_.init();
  is_initialized_ = result == kNvmlSuccess;
  if (is_initialized_) result = nvml_.device_by_uuid(uuid.c_str(), &device_);
  if (result != kNvmlSuccess) {
    problem_ = library + ": " + nvml_.error_string(result);
    return;
  }
  gpu_ = device_;
  if (!uuid.starts_with("MIG-")) return;
  if (nvml_.gpu_of_slice == nullptr || nvml_.gpu_of_slice(device_, &gpu_) != kNvmlSuccess) gpu_ = device_;
  nvml_.power = nullptr;
  nvml_.energy = nullptr;
  for (const Sensor sensor : {kPower, kEnergy}) miss(sensor, "of the whole GPU alone, and this is a slice of one");
}

GpuSensors::~GpuSensors() {
  if (is_initialized_) nvml_.shutdown();
}

void GpuSensors::miss(Sensor sensor, const std::string& reason) {
  if (std::exchange(is_missed_[sensor], true)) return;
  unknown_ += (unknown_.empty() ? "" : ", ") + std::string(kSensorNames[sensor]) + " (" + reason + ")";
}

template <typename Value, typename Call>
std::optional<Value> GpuSensors::ask(Sensor sensor, bool has_function, const Call& call, SensorReading& reading) {
  Value value{};
  const NvmlResult result = has_function ? call(&value) : kNvmlFunctionNotFound;
  if (result == kNvmlSuccess) return value;
  reading.is_lost = reading.is_lost || result == kNvmlGpuIsLost;
  miss(sensor, nvml_.error_string(result));
  return std::nullopt;
}

SensorReading GpuSensors::read() {
  SensorReading reading;
  const auto utilization = ask<NvmlUtilization>(
      kUtilization, nvml_.utilization != nullptr, [&](auto* value) { return nvml_.utilization(device_, value); },
      reading);
  if (utilization) reading.utilization = utilization->gpu;
  reading.power_mw = ask<unsigned>(
      kPower, nvml_.power != nullptr, [&](auto* value) { return nvml_.power(gpu_, value); }, reading);
  reading.energy_mj = ask<unsigned long long>(
      kEnergy, nvml_.energy != nullptr, [&](auto* value) { return nvml_.energy(gpu_, value); }, reading);
  reading.temperature_c = ask<unsigned>(
      kTemperature, nvml_.temperature != nullptr,
      [&](auto* value) { return nvml_.temperature(gpu_, kNvmlTemperatureGpu, value); }, reading);
  reading.clock_mhz = ask<unsigned>(
      kClock, nvml_.clock != nullptr, [&](auto* value) { return nvml_.clock(gpu_, kNvmlClockSm, value); }, reading);
  reading.throttle_bits = ask<unsigned long long>(
      kThrottling, nvml_.throttle_reasons != nullptr, [&](auto* value) { return nvml_.throttle_reasons(gpu_, value); },
      reading);
  const auto memory = ask<NvmlMemory>(
      kMemory, nvml_.memory != nullptr, [&](auto* value) { return nvml_.memory(device_, value); }, reading);
  if (memory) reading.memory_bytes = memory->used;
  return reading;
}

}  // namespace lora_train::device
