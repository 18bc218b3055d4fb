// Matrix products by cuBLASLt.
#pragma once

#include "lora_train/kernels/cuda_library.h"

namespace lora_train::cuda {

/// Makes the handle and takes the workspace from torch's allocator, which all products share: they run in one stream.
void start_gemm(const kernels::CudaSettings& settings);

/// CudaLibrary::gemm. The algorithm of a shape is asked for once.
bool gemm(const kernels::CudaGemm& call);

}  // namespace lora_train::cuda
