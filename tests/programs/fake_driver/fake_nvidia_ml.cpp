// libnvidia-ml.so.1 without a GPU. It knows every GPU of the machine, whatever CUDA_VISIBLE_DEVICES says.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fake_gpus.h"

namespace {

constexpr int kSuccess = 0, kUninitialized = 1, kNotFound = 6, kInsufficientSize = 7;
int num_users = 0;

struct Memory {
  unsigned long long total, free, used;
};
struct ListedProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

// A handle is the GPU's number plus one.
fake::FakeGpu gpu_of(void* device) { return fake::all_gpus().at(reinterpret_cast<std::uintptr_t>(device) - 1); }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const int code = std::atoi(fake::variable("FAKE_NVML_INIT", "0").c_str());
  if (code == kSuccess) ++num_users;
  return code;
}

int nvmlShutdown() {
  if (num_users == 0) return kUninitialized;
  --num_users;
  return kSuccess;
}

const char* nvmlErrorString(int error) { return error == 18 ? "Driver/library version mismatch" : "an error"; }

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

}  // extern "C"
