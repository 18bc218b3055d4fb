// Matrix products through cuBLASLt.
#pragma once

#include <string>
#include <vector>

#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::cuda {

/// Creates the handle, and allocates the workspace from torch's allocator. All products share it: they run on one stream.
void start_gemm(const kernels::CudaSettings& settings);

/// CudaLibrary::gemm. Uses the algorithm tuned for the shape's class, else cuBLASLt's first choice, and caches it.
bool gemm(const kernels::CudaGemm& call);

/// CudaLibrary::gemm_algorithms, gemm_by and use_gemm_algorithm.
std::vector<std::string> gemm_algorithms(const kernels::CudaGemm& call, int most);
bool gemm_by(const kernels::CudaGemm& call, const std::string& algorithm);
bool use_gemm_algorithm(const kernels::CudaGemm& call, const std::string& algorithm);

}  // namespace lora_train::cuda
