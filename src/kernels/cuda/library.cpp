// The exports of liblora_train_cuda.so.
#include "library.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "check.h"
#include "lora_train/base/library.h"
#include "lora_train_build_id.h"

namespace lora_train::kernels {

const NativeKernels& linked_native_kernels();  // dispatch/native_kernels.h, whose kernels are linked into this library

}  // namespace lora_train::kernels

namespace lora_train::cuda {
namespace {

kernels::CudaSettings current_settings;

kernels::CudaVersions versions() {
  kernels::CudaVersions versions;
  LT_CUDA_CHECK(cudaRuntimeGetVersion(&versions.runtime));
  LT_CUDA_CHECK(cudaDriverGetVersion(&versions.driver));
  versions.cublas_lt = static_cast<int>(cublasLtGetVersion());
  versions.cudnn = static_cast<int>(cudnnGetVersion());
  return versions;
}

int num_devices() { return c10::cuda::device_count(); }

kernels::CudaDevice device(int index) {
  const cudaDeviceProp& found = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  kernels::CudaDevice device;
  device.name = found.name;
  device.major = found.major;
  device.minor = found.minor;
  device.num_multiprocessors = found.multiProcessorCount;
  device.total_bytes = static_cast<std::int64_t>(found.totalGlobalMem);
  return device;
}

void start(const kernels::CudaSettings& wanted) {
  if (wanted.device < 0 || wanted.device >= num_devices()) {
    throw DeviceError("start_cuda", "there is no CUDA device {}; torch sees {}", wanted.device, num_devices());
  }
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(wanted.device));
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // the allocator does not exist before this
  current_settings = wanted;
  start_gemm();
}

void* stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

}  // namespace

const kernels::CudaSettings& settings() { return current_settings; }

}  // namespace lora_train::cuda

extern "C" const char* lora_train_build_id() { return LORA_TRAIN_BUILD_ID; }

extern "C" const lora_train::kernels::CudaLibrary* lora_train_cuda() {
  namespace cuda = lora_train::cuda;
  using lora_train::kernels::CudaLibrary;
  static const CudaLibrary library = {.versions = &cuda::versions,
                                      .num_devices = &cuda::num_devices,
                                      .device = &cuda::device,
                                      .start = &cuda::start,
                                      .stream = &cuda::stream,
                                      .gemm = &cuda::gemm,
                                      .gemm_algorithms = &cuda::gemm_algorithms,
                                      .gemm_by = &cuda::gemm_by,
                                      .use_gemm_algorithm = &cuda::use_gemm_algorithm,
                                      .fa2 = cuda::kFa2,
                                      .efficient = cuda::kEfficient,
                                      .cudnn = cuda::kCudnn,
                                      .check_cudnn_plan = &cuda::check_cudnn_plan,
                                      .native_kernels = &lora_train::kernels::linked_native_kernels(),
                                      .capture = &cuda::capture,
                                      .nccl = cuda::kNccl};
  return &library;
}
