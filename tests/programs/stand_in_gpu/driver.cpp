// libcuda.so.1 with GPUs of compute capability 8.0 (STAND_IN_DEVICES, STAND_IN_UUID, STAND_IN_TOTAL_GIB: runtime.cpp), as far as lora-train and LibTorch ask it.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kMultiprocessors = 16, kMajor = 75;  // CU_DEVICE_ATTRIBUTE_*

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}
template <typename Value>
int give(Value* to, Value value) {
  *to = value;
  return 0;
}
int give_text(char* to, const char* text, int length) {
  std::strncpy(to, text, static_cast<std::size_t>(length));
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return give(version, 13000); }
int cuDeviceGetCount(int* count) { return give(count, setting("STAND_IN_DEVICES", 1)); }
int cuDeviceGet(int* device, int ordinal) { return give(device, ordinal); }
int cuDeviceGetName(char* name, int length, int) { return give_text(name, "Stand-in GPU", length); }
int cuDeviceGetUuid_v2(void* uuid, int device) {
  std::memset(uuid, 7, 16);
  return give(static_cast<char*>(uuid) + 15, static_cast<char>(setting("STAND_IN_UUID", 0) + device));
}
int cuDeviceGetPCIBusId(char* id, int length, int) { return give_text(id, "0000:00:00.0", length); }
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  return give(bytes, static_cast<std::size_t>(setting("STAND_IN_TOTAL_GIB", 140)) << 30);
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return give(value, attribute == kMultiprocessors ? 132 : attribute == kMajor ? 8 : 0);
}
int cuDeviceCanAccessPeer(int* value, int, int) { return give(value, 0); }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return give(flags, 0U) + give(active, 1); }
int cuCtxGetCurrent(void** context) { return give(context, reinterpret_cast<void*>(1)); }
int cuGetErrorString(int, const char** text) { return give<const char*>(text, "an error of the stand-in"); }
int cuGetErrorName(int, const char** text) { return give<const char*>(text, "CUDA_ERROR_STAND_IN"); }

}  // extern "C"
