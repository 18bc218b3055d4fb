// Matrix products by cuBLASLt.
#pragma once

#include <string>
#include <vector>

#include "lora_train/kernels/cuda_library.h"

namespace lora_train::cuda {

/// Makes the handle and takes the workspace from torch's allocator, which all products share: they run in one stream.
void start_gemm(const kernels::CudaSettings& settings);

/// CudaLibrary::gemm. A shape is computed by the algorithm that was chosen for its class, else by cuBLASLt's first choice;
/// either is asked for once.
bool gemm(const kernels::CudaGemm& call);

/// CudaLibrary: what there is to choose from, and the choice.
std::vector<std::string> gemm_algorithms(const kernels::CudaGemm& call, int most);
bool gemm_by(const kernels::CudaGemm& call, const std::string& algorithm);
bool use_gemm_algorithm(const kernels::CudaGemm& call, const std::string& algorithm);

}  // namespace lora_train::cuda
