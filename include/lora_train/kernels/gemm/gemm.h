// Matrix product with fused bias, residual and scale. M rows, N columns, K inner dimension.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace lora_train::kernels
