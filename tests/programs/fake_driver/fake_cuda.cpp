// libcuda.so.1 without a GPU. Whoever asks it for a context is stopped: looking must not take memory of a GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake_gpus.h"

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101;
bool is_initialized = false;

// The driver's handles of devices are no promise to be ordinals; these are not.
constexpr int kHandleOffset = 7;

bool find(int device, fake::FakeGpu& gpu) {
  const auto gpus = fake::visible_gpus();
  const int index = device - kHandleOffset;
  if (index < 0 || index >= static_cast<int>(gpus.size())) return false;
  gpu = gpus[static_cast<std::size_t>(index)];
  return true;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const int code = std::atoi(fake::variable("FAKE_CUDA_INIT", "0").c_str());
  if (code != kSuccess) return code;
  if (fake::visible_gpus().empty()) return kNoDevice;
  is_initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = std::atoi(fake::variable("FAKE_CUDA_VERSION", "13000").c_str());
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case 100: *name = "CUDA_ERROR_NO_DEVICE"; return kSuccess;
    case 802: *name = "CUDA_ERROR_SYSTEM_NOT_READY"; return kSuccess;
    case 803: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return kSuccess;
    case 999: *name = "CUDA_ERROR_UNKNOWN"; return kSuccess;
    default: *name = nullptr; return kInvalidValue;
  }
}

int cuDeviceGetCount(int* count) {
  if (!is_initialized) return kNotInitialized;
  *count = static_cast<int>(fake::visible_gpus().size());
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + kHandleOffset;
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, int device) {
  fake::FakeGpu gpu;
  if (!find(device, gpu)) return kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(size), "%s", gpu.name.c_str());
  return kSuccess;
}

int cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
  fake::FakeGpu gpu;
  if (!find(device, gpu)) return kInvalidDevice;
  const std::string digits = fake::uuid_digits(gpu.number);
  for (std::size_t i = 0; i < 16; ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return kSuccess;
}

int cuDeviceGetPCIBusId(char* id, int size, int device) {
  fake::FakeGpu gpu;
  if (!find(device, gpu)) return kInvalidDevice;
  std::snprintf(id, static_cast<std::size_t>(size), "0000:%02x:00.0", gpu.number + 0x3b);
  return kSuccess;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  fake::FakeGpu gpu;
  if (!find(device, gpu)) return kInvalidDevice;
  *bytes = static_cast<std::size_t>(gpu.total_mib) << 20;
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  fake::FakeGpu gpu;
  if (!find(device, gpu)) return kInvalidDevice;
  switch (attribute) {
    case 16: *value = 132; return kSuccess;
    case 20: *value = gpu.compute_mode; return kSuccess;
    case 75: *value = gpu.major; return kSuccess;
    case 76: *value = gpu.minor; return kSuccess;
    default: return kInvalidValue;
  }
}

int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = fake::variable("FAKE_PEERS", "none") != "none" ? 1 : 0;
  return kSuccess;
}

int cuCtxCreate_v2(void**, unsigned, int) { std::abort(); }
int cuDevicePrimaryCtxRetain(void**, int) { std::abort(); }
int cuMemGetInfo_v2(std::size_t*, std::size_t*) { std::abort(); }

}  // extern "C"
