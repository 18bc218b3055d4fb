// A libcuda.so.1 for machines without a driver, so that cuDNN compiles its kernels there and says what they need. It loads
// modules that go nowhere and answers all else as the stub of the CUDA toolkit does.
namespace {

constexpr int kSuccess = 0, kStubLibrary = 34;
constexpr int kCudaVersion = 13000;

int give_handle(void** handle) {
  static int something;
  *handle = &something;
  return kSuccess;
}

}  // namespace

#define LORA_TRAIN_ANSWER(function, answer) \
  int function() { return answer; }

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return kSuccess;
}
int cuLibraryLoadData(void** library) { return give_handle(library); }
int cuLibraryGetKernel(void** kernel) { return give_handle(kernel); }
int cuKernelGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}
int cuFuncGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}
LORA_TRAIN_ANSWER(cuKernelSetAttribute, kSuccess)
LORA_TRAIN_ANSWER(cuFuncSetAttribute, kSuccess)
LORA_TRAIN_ANSWER(cuLibraryUnload, kSuccess)
LORA_TRAIN_ANSWER(cuModuleUnload, kSuccess)
LORA_TRAIN_ANSWER(cuCtxGetCurrent, kStubLibrary)
LORA_TRAIN_ANSWER(cuCtxGetDevice, kStubLibrary)
LORA_TRAIN_ANSWER(cuCtxGetLimit, kStubLibrary)
LORA_TRAIN_ANSWER(cuCtxPopCurrent, kStubLibrary)
LORA_TRAIN_ANSWER(cuCtxPushCurrent, kStubLibrary)
LORA_TRAIN_ANSWER(cuDeviceGet, kStubLibrary)
LORA_TRAIN_ANSWER(cuDeviceGetAttribute, kStubLibrary)
LORA_TRAIN_ANSWER(cuDeviceGetCount, kStubLibrary)
LORA_TRAIN_ANSWER(cuDevicePrimaryCtxRelease, kStubLibrary)
LORA_TRAIN_ANSWER(cuDevicePrimaryCtxReset, kStubLibrary)
LORA_TRAIN_ANSWER(cuDevicePrimaryCtxRetain, kStubLibrary)
LORA_TRAIN_ANSWER(cuGetErrorName, kStubLibrary)
LORA_TRAIN_ANSWER(cuGetErrorString, kStubLibrary)
LORA_TRAIN_ANSWER(cuInit, kStubLibrary)
LORA_TRAIN_ANSWER(cuLaunchCooperativeKernel, kStubLibrary)
LORA_TRAIN_ANSWER(cuLaunchKernel, kStubLibrary)
LORA_TRAIN_ANSWER(cuLaunchKernelEx, kStubLibrary)
LORA_TRAIN_ANSWER(cuLibraryLoadFromFile, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkAddData, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkAddData_v2, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkAddFile_v2, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkComplete, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkCreate, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkCreate_v2, kStubLibrary)
LORA_TRAIN_ANSWER(cuLinkDestroy, kStubLibrary)
LORA_TRAIN_ANSWER(cuMemcpyDtoH_v2, kStubLibrary)
LORA_TRAIN_ANSWER(cuModuleGetFunction, kStubLibrary)
LORA_TRAIN_ANSWER(cuModuleGetGlobal_v2, kStubLibrary)
LORA_TRAIN_ANSWER(cuModuleLoadData, kStubLibrary)
LORA_TRAIN_ANSWER(cuModuleLoadDataEx, kStubLibrary)
LORA_TRAIN_ANSWER(cuModuleLoadFatBinary, kStubLibrary)
LORA_TRAIN_ANSWER(cuOccupancyMaxActiveBlocksPerMultiprocessor, kStubLibrary)
LORA_TRAIN_ANSWER(cuOccupancyMaxPotentialClusterSize, kStubLibrary)
LORA_TRAIN_ANSWER(cuStreamGetCtx, kStubLibrary)
LORA_TRAIN_ANSWER(cuStreamSynchronize, kStubLibrary)
LORA_TRAIN_ANSWER(cuTensorMapEncodeTiled, kStubLibrary)

}  // extern "C"
