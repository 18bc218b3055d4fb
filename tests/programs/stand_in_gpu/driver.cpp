// libcuda.so.1 with GPUs of compute capability 8.0 (STAND_IN_DEVICES, STAND_IN_UUID, STAND_IN_TOTAL_GIB: runtime.cpp), as far as lora-train and LibTorch ask it.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kMultiprocessors = 16, kMajor = 75;  // CU_DEVICE_ATTRIBUTE_*

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  const char* const text = std::getenv("STAND_IN_DEVICES");
  *count = text != nullptr ? std::atoi(text) : 1;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Stand-in GPU", static_cast<std::size_t>(length));
  return 0;
}
int cuDeviceGetUuid_v2(void* uuid, int device) {
  const char* const text = std::getenv("STAND_IN_UUID");
  std::memset(uuid, 7, 16);
  static_cast<char*>(uuid)[15] = static_cast<char>((text != nullptr ? std::atoi(text) : 0) + device);
  return 0;
}
int cuDeviceGetPCIBusId(char* id, int length, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<std::size_t>(length));
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  const char* const text = std::getenv("STAND_IN_TOTAL_GIB");
  *bytes = static_cast<std::size_t>(text != nullptr ? std::atoi(text) : 140) << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kMultiprocessors ? 132 : attribute == kMajor ? 8 : 0;
  return 0;
}
int cuDeviceCanAccessPeer(int* value, int, int) {
  *value = 0;
  return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = reinterpret_cast<void*>(1);
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the stand-in";
  return 0;
}
int cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_STAND_IN";
  return 0;
}

}  // extern "C"
