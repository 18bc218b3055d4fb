// Maps a product of strided row-major matrices to a column-major BLAS call. No torch.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

namespace lora_train::kernels {

/// A matrix in memory: element (r, c) lies at r * row_stride + c * column_stride.
struct MatrixView {
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
};

/// D = op(A) op(B) + C in column-major matrices: op(A) [m, k], op(B) [k, n], C and D [m, n]; element (r, c) of a matrix
/// lies at r + c * ld, and a transposed one is stored as [k, m] or [n, k].
struct ColumnMajorGemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;

  auto operator<=>(const ColumnMajorGemm&) const = default;
};

/// y = a b + c for a [M, K], b [K, N], c and y [M, N] is y^T = b^T a^T + c^T, and a row-major matrix read column-major is
/// its transpose: A is b's memory, B is a's, C is c's, D is y's; m = N (so a vector along m is a bias of y's columns),
/// n = M. Returns nothing if BLAS cannot describe a matrix: overlapping or reversed rows, no dimension with stride 1, y or c
/// not row-major. Sizes are at least 1.
std::optional<ColumnMajorGemm> column_major_gemm(const MatrixView& a, const MatrixView& b, const MatrixView& c,
                                                 const MatrixView& y);

/// The size class of a number of tokens: the number rounded up by at most 1/8, so that there are eight classes per power of two.
/// An algorithm tuned for one size serves its whole class.
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
