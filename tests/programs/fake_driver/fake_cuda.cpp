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

/// What `answer` says of a GPU.
template <typename Answer>
int of_gpu(int device, const Answer& answer) {
  const auto gpus = fake::visible_gpus();
  const int index = device - kHandleOffset;
  if (index < 0 || index >= static_cast<int>(gpus.size())) return kInvalidDevice;
  return answer(gpus[static_cast<std::size_t>(index)]);
}
template <typename Value>
int give(Value* to, Value value) {
  *to = value;
  return kSuccess;
}
int number_of(const char* name, const char* otherwise) { return std::atoi(fake::variable(name, otherwise).c_str()); }

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const int code = number_of("FAKE_CUDA_INIT", "0");
  if (code != kSuccess) return code;
  if (fake::visible_gpus().empty()) return kNoDevice;
  is_initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) { return give(version, number_of("FAKE_CUDA_VERSION", "13000")); }

int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case 100: return give<const char*>(name, "CUDA_ERROR_NO_DEVICE");
    case 802: return give<const char*>(name, "CUDA_ERROR_SYSTEM_NOT_READY");
    case 803: return give<const char*>(name, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
    case 999: return give<const char*>(name, "CUDA_ERROR_UNKNOWN");
    default: *name = nullptr; return kInvalidValue;
  }
}

int cuDeviceGetCount(int* count) {
  return is_initialized ? give(count, static_cast<int>(fake::visible_gpus().size())) : kNotInitialized;
}

int cuDeviceGet(int* device, int ordinal) { return give(device, ordinal + kHandleOffset); }

int cuDeviceGetName(char* name, int size, int device) {
  return of_gpu(device, [&](const fake::FakeGpu& gpu) {
    std::snprintf(name, static_cast<std::size_t>(size), "%s", gpu.name.c_str());
    return kSuccess;
  });
}

int cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
  return of_gpu(device, [&](const fake::FakeGpu& gpu) {
    const std::string digits = fake::uuid_digits(gpu.number);
    for (std::size_t i = 0; i < 16; ++i)
      bytes[i] = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
    return kSuccess;
  });
}

int cuDeviceGetPCIBusId(char* id, int size, int device) {
  return of_gpu(device, [&](const fake::FakeGpu& gpu) {
    std::snprintf(id, static_cast<std::size_t>(size), "0000:%02x:00.0", gpu.number + 0x3b);
    return kSuccess;
  });
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  return of_gpu(device, [&](const fake::FakeGpu& gpu) { return give<std::size_t>(bytes, gpu.total_mib << 20); });
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return of_gpu(device, [&](const fake::FakeGpu& gpu) {
    switch (attribute) {
      case 16: return give(value, 132);
      case 20: return give(value, gpu.compute_mode);
      case 75: return give(value, gpu.major);
      case 76: return give(value, gpu.minor);
      default: return kInvalidValue;
    }
  });
}

int cuDeviceCanAccessPeer(int* can, int, int) {
  return give(can, fake::variable("FAKE_PEERS", "none") != "none" ? 1 : 0);
}

int cuCtxCreate_v2(void**, unsigned, int) { std::abort(); }
int cuDevicePrimaryCtxRetain(void**, int) { std::abort(); }
int cuMemGetInfo_v2(std::size_t*, std::size_t*) { std::abort(); }

}  // extern "C"
