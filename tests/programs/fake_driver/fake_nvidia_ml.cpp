// libnvidia-ml.so.1 without a GPU. It knows every GPU of the machine, whatever CUDA_VISIBLE_DEVICES says.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "fake_gpus.h"

namespace {

constexpr int kSuccess = 0, kUninitialized = 1, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7;
int num_users = 0;
std::mutex mutex;
std::map<std::string, std::size_t> num_reads;  // by sensor, since the library was initialised

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct ListedProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

// A handle is the GPU's number plus one.
fake::FakeGpu gpu_of(void* device) { return fake::all_gpus().at(reinterpret_cast<std::uintptr_t>(device) - 1); }

// The handle of the GPU of which `slice` is a part; NVML answers for it what it does not for the slice.
constexpr std::uintptr_t kWholeGpu = 1000;
bool is_slice(void* device) {
  return reinterpret_cast<std::uintptr_t>(device) < kWholeGpu && gpu_of(device).name.find(" MIG ") != std::string::npos;
}

// What FAKE_SENSORS says of the next read of a sensor.
template <typename Value>
int read_sensor(void* device, const std::string& name, Value* value) {
  if (is_slice(device)) return kNotSupported;
  const std::lock_guard lock(mutex);
  for (const std::string& entry : fake::split(fake::variable("FAKE_SENSORS", ""), ';')) {
    const std::size_t equals = entry.find('=');
    if (entry.substr(0, equals) != name) continue;
    const auto values = fake::split(entry.substr(equals + 1), ',');
    const std::string& text = values[std::min(num_reads[name]++, values.size() - 1)];
    if (text[0] == '!') return std::stoi(text.substr(1));
    *value = static_cast<Value>(std::stoull(text));
    return kSuccess;
  }
  return kNotSupported;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const int code = std::atoi(fake::variable("FAKE_NVML_INIT", "0").c_str());
  const std::lock_guard lock(mutex);
  num_reads.clear();
  if (code == kSuccess) ++num_users;
  return code;
}

int nvmlShutdown() {
  const std::lock_guard lock(mutex);
  if (num_users == 0) return kUninitialized;
  --num_users;
  return kSuccess;
}

const char* nvmlErrorString(int error) {
  switch (error) {
    case 3: return "Not Supported";
    case 6: return "Not Found";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "an error";
  }
}

int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  std::snprintf(version, size, "%s", fake::variable("FAKE_DRIVER_VERSION", "580.95.05").c_str());
  return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  std::string digits;
  const std::string text = uuid;
  for (const char c : text.substr(4)) {
    if (c != '-') digits += c;
  }
  for (const auto& gpu : fake::all_gpus()) {
    const bool is_slice = gpu.name.find(" MIG ") != std::string::npos;
    if (digits == fake::uuid_digits(gpu.number) && text.substr(0, 4) == (is_slice ? "MIG-" : "GPU-")) {
      *device = reinterpret_cast<void*>(static_cast<std::uintptr_t>(gpu.number) + 1);
      return kSuccess;
    }
  }
  return kNotFound;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  const fake::FakeGpu gpu = gpu_of(device);
  *memory = {gpu.total_mib << 20, gpu.free_mib << 20, (gpu.total_mib - gpu.free_mib) << 20};
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ListedProcess* processes) {
  const fake::FakeGpu gpu = gpu_of(device);
  const auto needed = static_cast<unsigned>(gpu.processes.size());
  const bool fits = *count >= needed;
  *count = needed;
  if (!fits) return kInsufficientSize;
  for (unsigned i = 0; i < needed; ++i) {
    const fake::Process& process = gpu.processes[i];
    const unsigned long long bytes = process.mib < 0 ? ~0ULL : static_cast<unsigned long long>(process.mib) << 20;
    processes[i] = {process.pid, bytes, ~0U, ~0U};
  }
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(void*, void*, int capability, int* status) {
  const bool is_nvlink = fake::variable("FAKE_PEERS", "none") == "nvlink";
  *status = capability == 2 && !is_nvlink ? 5 : 0;
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* percent) {
  percent->memory = 0;
  return read_sensor(device, "utilization", &percent->gpu);
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) { return read_sensor(device, "power", milliwatts); }

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  return sensor == 0 ? read_sensor(device, "temperature", celsius) : 2;
}

int nvmlDeviceGetClockInfo(void* device, int type, unsigned* mhz) {
  return type == 1 ? read_sensor(device, "clock", mhz) : 2;
}

#ifdef FAKE_OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) {
  return read_sensor(device, "throttle", bits);
}
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* bits) {
  return read_sensor(device, "throttle", bits);
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  return read_sensor(device, "energy", millijoules);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void* slice, void** gpu) {
  *gpu = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(slice) + kWholeGpu);
  return kSuccess;
}
#endif

}  // extern "C"
