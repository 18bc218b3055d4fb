#include "driver.h"

#include <dlfcn.h>
#include <fmt/core.h>

namespace lora_train::device {
namespace {

/// Looks up functions in a library, and records the first needed one that is missing.
class Library {
 public:
  explicit Library(const std::string& name) : name_(name), handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* const reason = ::dlerror();
      problem_ = reason != nullptr ? reason : name + ": cannot be opened";
    }
  }

  template <typename Function>
  void take(Function& function, const char* symbol) {
    take_if_there(function, symbol);
    if (function == nullptr && problem_.empty()) problem_ = fmt::format("{}: has no function {}", name_, symbol);
  }

  template <typename Function>
  void take_if_there(Function& function, const char* symbol) {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(handle_, symbol));
  }

  const std::string& problem() const { return problem_; }

 private:
  std::string name_;
  void* handle_;
  std::string problem_;
};

}  // namespace

bool open_cuda_driver(const std::string& library, CudaDriver& driver, std::string& problem) {
  Library cuda(library);
  cuda.take(driver.init, "cuInit");
  cuda.take(driver.driver_version, "cuDriverGetVersion");
  cuda.take(driver.error_name, "cuGetErrorName");
  cuda.take(driver.device_count, "cuDeviceGetCount");
  cuda.take(driver.device, "cuDeviceGet");
  cuda.take(driver.name, "cuDeviceGetName");
  cuda.take(driver.uuid, "cuDeviceGetUuid_v2");  // on a GPU split by MIG: the instance's UUID
  cuda.take(driver.pci_id, "cuDeviceGetPCIBusId");
  cuda.take(driver.total_memory, "cuDeviceTotalMem_v2");
  cuda.take(driver.attribute, "cuDeviceGetAttribute");
  cuda.take(driver.can_access_peer, "cuDeviceCanAccessPeer");
  problem = cuda.problem();
  return problem.empty();
}

bool open_nvml_driver(const std::string& library, NvmlDriver& driver, std::string& problem) {
  Library nvml(library);
  nvml.take(driver.init, "nvmlInit_v2");
  nvml.take(driver.shutdown, "nvmlShutdown");
  nvml.take(driver.error_string, "nvmlErrorString");
  nvml.take(driver.driver_version, "nvmlSystemGetDriverVersion");
  nvml.take(driver.device_by_uuid, "nvmlDeviceGetHandleByUUID");
  nvml.take(driver.memory, "nvmlDeviceGetMemoryInfo");
  nvml.take(driver.compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  nvml.take(driver.peer_status, "nvmlDeviceGetP2PStatus");
  problem = nvml.problem();
  return problem.empty();
}

bool open_nvml_sensors(const std::string& library, NvmlSensors& sensors, std::string& problem) {
  Library nvml(library);
  nvml.take(sensors.init, "nvmlInit_v2");
  nvml.take(sensors.shutdown, "nvmlShutdown");
  nvml.take(sensors.error_string, "nvmlErrorString");
  nvml.take(sensors.device_by_uuid, "nvmlDeviceGetHandleByUUID");
  nvml.take_if_there(sensors.gpu_of_slice, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
  nvml.take_if_there(sensors.utilization, "nvmlDeviceGetUtilizationRates");
  nvml.take_if_there(sensors.power, "nvmlDeviceGetPowerUsage");
  nvml.take_if_there(sensors.energy, "nvmlDeviceGetTotalEnergyConsumption");
  nvml.take_if_there(sensors.temperature, "nvmlDeviceGetTemperature");
  nvml.take_if_there(sensors.clock, "nvmlDeviceGetClockInfo");
  nvml.take_if_there(sensors.memory, "nvmlDeviceGetMemoryInfo");
  nvml.take_if_there(sensors.throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  if (sensors.throttle_reasons == nullptr)  // its name before driver 535
    nvml.take_if_there(sensors.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  problem = nvml.problem();
  return problem.empty();
}

}  // namespace lora_train::device
