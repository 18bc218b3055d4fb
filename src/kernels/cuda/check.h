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

inline std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
}
inline std::string text_of(cublasStatus_t status) { return cublasLtGetStatusName(status); }
inline std::string text_of(cudnnStatus_t status) { return cudnnGetErrorString(status); }

/// Success is 0 in all three libraries.
template <class Status>
void check_status(Status status, const char* statement, const char* file, int line) {
  if (status != Status{}) throw DeviceError(call_site(file, line), "{} failed: {}", statement, text_of(status));
}

}  // namespace lora_train::cuda

#define LT_CUDA_CHECK(statement) ::lora_train::cuda::check_status((statement), #statement, __FILE__, __LINE__)
