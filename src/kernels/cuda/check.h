// Error checks for every call of CUDA, cuBLASLt and cuDNN.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <string>

#include "lora_train/base/error.h"

namespace lora_train::cuda {

/// "src/kernels/cuda/gemm.cpp:12"
inline std::string call_site(const char* file, int line) {
  const std::string path = file;
  const std::size_t begin = path.rfind("src/kernels/cuda/");
  return path.substr(begin == std::string::npos ? 0 : begin) + ":" + std::to_string(line);
}

inline void check_cuda(cudaError_t status, const char* statement, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw DeviceError(call_site(file, line), std::string(statement) + " failed: " + cudaGetErrorName(status) + " (" +
                                               cudaGetErrorString(status) + ")");
}

inline void check_cublas(cublasStatus_t status, const char* statement, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(call_site(file, line), std::string(statement) + " failed: " + cublasLtGetStatusName(status));
}

inline void check_cudnn(cudnnStatus_t status, const char* statement, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(call_site(file, line), std::string(statement) + " failed: " + cudnnGetErrorString(status));
}

}  // namespace lora_train::cuda

#define LT_CUDA_CHECK(statement) ::lora_train::cuda::check_cuda((statement), #statement, __FILE__, __LINE__)
#define LT_CUBLAS_CHECK(statement) ::lora_train::cuda::check_cublas((statement), #statement, __FILE__, __LINE__)
#define LT_CUDNN_CHECK(statement) ::lora_train::cuda::check_cudnn((statement), #statement, __FILE__, __LINE__)
