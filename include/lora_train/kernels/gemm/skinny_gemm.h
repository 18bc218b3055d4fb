// Skinny GEMM: a linear over a handful of rows, as in decoding. Up to four rows are bound by reading the weights, which it reads once.
// M rows, K input features, N outputs.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// y = alpha x weight^T + bias + residual. x [M, K], weight [N, K]: fp32, bf16 or fp64, one dtype, rows may be strided. A bf16
/// weight may stand beside an fp32 x: half the bytes to read.
/// y [M, N]: dtype of x, or fp32 for bf16; rows may be strided. bias [N] and residual [M, N], which may be y: dtype of y, or undefined.
/// On a CPU in fp32 and bf16 each output is one fp32 sum, rounded once, in an order that does not depend on M or on the thread
/// count: a row has the same bits alone and in a batch (batch-invariant). Elsewhere this is gemm() (gemm.h).
void skinny_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                 at::Tensor& y, double alpha = 1);

/// True where skinny_gemm() beats gemm() for any number of rows: bf16 on an x86 CPU that is below x86-64-v4, for which oneDNN has no bf16
/// products, so that ATen's take ten times as long as those of fp32.
bool skinny_gemm_is_faster(at::Device device, at::ScalarType dtype);

}  // namespace lora_train::kernels
