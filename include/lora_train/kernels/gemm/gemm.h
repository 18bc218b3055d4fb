// Matrix product with fused bias, residual and scale, and its tuning. M rows, N columns, K inner dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::kernels {

/// y = alpha a b + bias + residual, or with `accumulate` y += that.
struct GemmExtras {
  at::Tensor bias = {};      ///< [N], dtype of y, contiguous
  at::Tensor residual = {};  ///< [M, N], dtype of y, rows may be strided; neither y itself nor together with accumulate
  bool accumulate = false;
  double alpha = 1;
  WorkClass work_class = WorkClass::kGemm;  ///< how a recorder classifies it
};

/// a [M, K], b [K, N]: fp32, bf16 or fp64, one dtype. Each may be a transposed view; rows (or columns of a transposed
/// one) may be strided. y [M, N]: that dtype, or fp32 for bf16 a and b; rows may be strided; y must not overlap a or b.
/// Sums bf16 in fp32. On CUDA, uses cuBLASLt if cuda_library() is loaded and the dtype is not fp64, on the current stream and
/// without an allocation. Otherwise, and on a CPU, this is gemm_reference. Throws ShapeError, and DeviceError from CUDA.
void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras = {});

/// The same with at::mm_out and at::addmm_out; any device.
void gemm_reference(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras = {});

struct CudaGemm;
struct CudaLibrary;
class Tuner;

/// While an instance exists, a CUDA product whose class has no algorithm yet gets one before it runs: from the tuner's tables, or
/// by timing the candidates on the given operands. Timing leaves y unchanged (if it accumulates: adds 1e-30 times the product);
/// then y is computed as requested. Use it before step 1, never inside a capture, one instance at a time.
class GemmTuning {
 public:
  explicit GemmTuning(Tuner& tuner);
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
};

/// The tuning key of a product: everything its algorithm depends on, with n (tokens, or rows of the loss head) as a class.
std::string gemm_key(const CudaGemm& gemm, bool tf32);

namespace detail {
extern Tuner* gemm_tuner;
void tune_gemm(const CudaLibrary& cuda, const CudaGemm& gemm);
}  // namespace detail

}  // namespace lora_train::kernels
