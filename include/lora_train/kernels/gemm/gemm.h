// Matrix product with fused bias, residual and scale, its tuning, and its form as a BLAS call. M rows, N columns, K
// inner dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::kernels {

/// y = alpha a b + bias + residual, or with `accumulate` y += that.
struct GemmExtras {
  at::Tensor bias = {};      ///< [N], dtype of y, contiguous
  at::Tensor residual = {};  ///< [M, N], dtype of y, rows may be strided; not y itself, not with accumulate
  bool accumulate = false;
  double alpha = 1;
  WorkClass work_class = WorkClass::kGemm;  ///< how a recorder classifies it
};

/// a [M, K], b [K, N]: fp32, bf16 or fp64, one dtype; on a CPU, b may be bf16 beside an fp32 a. Each may be a
/// transposed view; rows (or columns of a transposed one) may be strided. y [M, N]: dtype of a, or fp32 for bf16 a and
/// b; rows may be strided; y must not overlap a or b. Sums bf16 in fp32. On CUDA, uses cuBLASLt if cuda_library() is
/// loaded and the dtype is not fp64, on the current stream and without an allocation. On a CPU with AVX-512, packs parts
/// of b for oneDNN's micro-kernels and rounds once, except in fp64, for a transposed a and for bf16 with an odd K: bits
/// of a row depend on neither M nor the number of threads. On an x86 CPU without AVX-512, and for a bf16 b beside an
/// fp32 a, copies bf16 to fp32, a part at a time, and rounds once. Otherwise this is gemm_reference. Throws ShapeError,
/// and DeviceError from CUDA.
void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras = {});

/// Bytes that one thread keeps after products of up to `rows` rows on this CPU, whose elements have element_bytes; 0 if
/// it has no AVX-512.
std::int64_t packed_gemm_bytes(std::int64_t rows, std::int64_t element_bytes);

/// The same with at::mm_out and at::addmm_out; any device.
void gemm_reference(const at::Tensor& a, const at::Tensor& b, at::Tensor& y, const GemmExtras& extras = {});

struct CudaGemm;
class Tuner;

/// While an instance exists, a CUDA product whose class has no algorithm yet gets one before it runs: from the tuner's
/// tables, or by timing the candidates on the given operands. Timing leaves y unchanged (if it accumulates: adds 1e-30
/// times the product); then y is computed as requested. Use it before step 1, never inside a capture, one instance at a
/// time.
class GemmTuning {
 public:
  explicit GemmTuning(Tuner& tuner);
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
};

/// The tuning key of a product: everything its algorithm depends on, with n (tokens, or rows of the loss head) as a
/// class.
std::string gemm_key(const CudaGemm& gemm, bool tf32);

// Skinny GEMM: a linear over a handful of rows, as in decoding. Up to four rows are bound by reading the weights, which
// it reads once. M rows, K input features, N outputs.

/// y = alpha x weight^T + bias + residual. x [M, K], weight [N, K]: fp32, bf16 or fp64, one dtype, rows may be strided.
/// A bf16 weight may go with an fp32 x: half the bytes to read.
/// y [M, N]: dtype of x, or fp32 for bf16; rows may be strided. bias [N] and residual [M, N], which may be y: dtype of
/// y, or undefined. On a CPU in fp32 and bf16 each output is one fp32 sum, rounded once, in an order that does not
/// depend on M or on the thread count: a row has the same bits alone and in a batch (batch-invariant). Elsewhere this
/// is gemm().
void skinny_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                 at::Tensor& y, double alpha = 1);

// Maps a product of strided row-major matrices to a column-major BLAS call.

/// A matrix in memory: element (r, c) is at r * row_stride + c * column_stride.
struct MatrixView {
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
};

/// D = op(A) op(B) + C in column-major matrices: op(A) [m, k], op(B) [k, n], C and D [m, n]; element (r, c) of a matrix
/// is at r + c * ld, and a transposed one is stored as [k, m] or [n, k].
struct ColumnMajorGemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;

  auto operator<=>(const ColumnMajorGemm&) const = default;
};

/// y = a b + c for a [M, K], b [K, N], c and y [M, N] is y^T = b^T a^T + c^T, and a row-major matrix read column-major
/// is its transpose: A is b's memory, B is a's, C is c's, D is y's; m = N (so a vector along m is a bias of y's
/// columns), n = M. Returns nothing if BLAS cannot describe a matrix: overlapping or reversed rows, no dimension with
/// stride 1, y or c not row-major. Sizes are at least 1.
std::optional<ColumnMajorGemm> column_major_gemm(const MatrixView& a, const MatrixView& b, const MatrixView& c,
                                                 const MatrixView& y);

/// The size class of a number of tokens: the number rounded up by at most 1/8, which gives eight classes per power of
/// two. An algorithm tuned for one size serves its whole class.
constexpr std::int64_t gemm_class(std::int64_t n) {
  std::int64_t step = 1;
  while (16 * step < n) step *= 2;
  return (n + step - 1) / step * step;
}

/// The alignment of an address: the largest power of two up to `limit` that divides it.
constexpr std::uint32_t alignment_of(std::uintptr_t address, std::uint32_t limit = 256) {
  std::uint32_t alignment = limit;
  while (alignment > 1 && address % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace lora_train::kernels
