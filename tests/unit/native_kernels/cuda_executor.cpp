// Managed memory: a pointer is good on host and GPU, and compute-sanitizer knows where it ends.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "lora_train/base/error.h"
#include "support/kernel_executor.h"

namespace lora_train::testing_support {
namespace {

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw DeviceError(call, cudaGetErrorString(error));
}

}  // namespace

void* allocate_for_kernels(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal), "cudaMallocManaged");
  return memory;
}
void free_for_kernels(void* memory) { cudaFree(memory); }
void wait_for_kernels() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
void set_descending_order(bool) {}
std::int64_t num_launches() { return -1; }

std::string start_executor() {
  // Tests read what a kernel wrote right after the launch, and an error belongs to the launch that made it.
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  int num_devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&num_devices); error != cudaSuccess) {
    return std::string("no CUDA device: ") + cudaGetErrorString(error);
  }
  return num_devices == 0 ? "no CUDA device" : "";
}

}  // namespace lora_train::testing_support
