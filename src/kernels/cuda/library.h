// The parts of liblora_train_cuda.so that library.cpp puts into its function table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::cuda {

/// The settings passed to start().
const kernels::CudaSettings& settings();

// Matrix products through cuBLASLt.

/// Creates the handle, and allocates the workspace from torch's allocator. All products share it: they run on one
/// stream.
void start_gemm();

/// CudaLibrary::gemm. Uses the algorithm tuned for the shape's class, else cuBLASLt's first choice, and caches it.
bool gemm(const kernels::CudaGemm& call);

/// CudaLibrary::gemm_algorithms, gemm_by and use_gemm_algorithm.
std::vector<std::string> gemm_algorithms(const kernels::CudaGemm& call, int most);
bool gemm_by(const kernels::CudaGemm& call, const std::string& algorithm);
bool use_gemm_algorithm(const kernels::CudaGemm& call, const std::string& algorithm);

std::unique_ptr<kernels::Graph> capture(const std::function<void()>& body);

extern const kernels::Nccl kNccl;

// Attention backends of LibTorch and cuDNN; contracts in kernels::CudaAttention.

/// FlashAttention 2, through ATen.
extern const kernels::CudaAttention kFa2;

/// ATen's memory-efficient attention, with expanded KV heads.
extern const kernels::CudaAttention kEfficient;

/// cuDNN's graphs over ragged documents (attention_cudnn.cpp).
extern const kernels::CudaAttention kCudnn;
kernels::CudnnPlan check_cudnn_plan(const kernels::CudnnShape& shape, const std::string& gpu_json, int sm_version,
                                    bool with_compilation);

/// Tokens of all documents. Slots past them do not belong to any document.
inline std::int64_t total(const std::vector<std::int64_t>& cu_seqlens) { return cu_seqlens.back(); }

/// All backends read and write 16 bytes at a time.
inline bool is_aligned(const at::Tensor& t) {
  return t.stride(0) * t.element_size() % 16 == 0 && reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
}
inline at::Tensor aligned(const at::Tensor& t) { return is_aligned(t) ? t : t.clone(at::MemoryFormat::Contiguous); }

}  // namespace lora_train::cuda
