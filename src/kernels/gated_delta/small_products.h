// Products and transposes of matrices that fit the second cache: tiles of the result stay in registers. F is float
// (double in a test). No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "launch/elements.h"
#include "launch/machine.h"

namespace lora_train::kernels::chunked {

constexpr std::int64_t kMatrixPad = 16;  ///< rows and columns are padded to a multiple of it, with zeros

inline std::int64_t padded(std::int64_t n) { return (n + kMatrixPad - 1) / kMatrixPad * kMatrixPad; }

/// Row-major. The rows lie an odd number of cache lines apart, so that a column of tiles meets every set of a cache.
template <class F>
class Matrix {
 public:
  void resize(std::int64_t rows, std::int64_t columns) {
    stride_ = (padded(columns) / kMatrixPad | 1) * kMatrixPad;
    lines_.resize(static_cast<std::size_t>(padded(rows) * stride_ / kMatrixPad));
  }
  F* operator[](std::int64_t row) { return lines_.data()->values + row * stride_; }
  std::int64_t stride() const { return stride_; }
  operator Rows<F>() { return {(*this)[0], stride_}; }
  void fill_zero() { std::fill(lines_.begin(), lines_.end(), Line{}); }

 private:
  struct alignas(64) Line {
    F values[kMatrixPad];
  };
  std::vector<Line> lines_;
  std::int64_t stride_ = 0;
};

/// The left operand: element (i, n) is data[i * row_stride + n * inner_stride].
template <class F>
struct Left {
  const F* data;
  std::int64_t row_stride, inner_stride;
};
template <class F>
Left<F> plain(Matrix<F>& m) {
  return {m[0], m.stride(), 1};
}
template <class F>
Left<F> transposed(Matrix<F>& m) {
  return {m[0], 1, m.stride()};
}

/// What a product may leave out. A left operand must be zero beyond its triangle; beyond a triangle of the result,
/// diagonal excluded, anything may be written.
enum class Triangle { kNone, kLowerLeft, kUpperLeft, kLowerResult };

/// result = keep * result + left right. With keep 0 the old result is not read.
template <class F>
struct Product {
  std::int64_t rows, columns, inner;  ///< multiples of 8 and of kMatrixPad; any
  Left<F> left;
  Rows<F> right;  ///< [inner, columns]
  F keep;
  Rows<F> result;  ///< [rows, columns]
  Triangle triangle = Triangle::kNone;
};

/// Rows [i, i + kRows), kVectors vectors of columns from j, over [begin, end) of the inner dimension.
template <class Vector, int kRows, int kVectors, class F>
LORA_TRAIN_INLINE void multiply_tile(const Product<F>& p, std::int64_t i, std::int64_t j, std::int64_t begin,
                                     std::int64_t end) {
  constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(F);
  Vector sums[kRows][kVectors] = {};
  const F* left = p.left.data + i * p.left.row_stride + begin * p.left.inner_stride;
  const F* right = p.right[begin] + j;
  for (std::int64_t n = begin; n < end; ++n, left += p.left.inner_stride, right += p.right.stride) {
    Vector row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&row[v], right + v * kLanes, sizeof row[v]);
      if constexpr (sizeof(Vector) > 16) hold_in_register(row[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F factor = left[r * p.left.row_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      F* const to = p.result[i + r] + j + v * kLanes;
      Vector old = {};
      if (p.keep != 0) std::memcpy(&old, to, sizeof old);
      old = p.keep * old + sums[r][v];
      std::memcpy(to, &old, sizeof old);
    }
  }
}

/// All rows of kVectors vectors of columns: their part of the right operand stays in the first cache.
template <class Vector, int kRows, int kVectors, class F>
LORA_TRAIN_INLINE void multiply_columns(const Product<F>& p, std::int64_t j) {
  for (std::int64_t i = 0; i < p.rows; i += kRows) {
    if (p.triangle == Triangle::kLowerResult && j >= i + kRows) continue;
    const std::int64_t begin = p.triangle == Triangle::kUpperLeft ? i : 0;
    const std::int64_t end = p.triangle == Triangle::kLowerLeft ? std::min(p.inner, i + kRows) : p.inner;
    multiply_tile<Vector, kRows, kVectors>(p, i, j, begin, end);
  }
}

template <class Vector, int kRows, class F>
LORA_TRAIN_INLINE void multiply_all(const Product<F>& p) {
  constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(F);
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= p.columns; j += 2 * kLanes) multiply_columns<Vector, kRows, 2>(p, j);
  for (; j < p.columns; j += kLanes) multiply_columns<Vector, kRows, 1>(p, j);
}

/// to [columns, rows] = from [rows, columns], both multiples of 8.
template <class F>
LORA_TRAIN_INLINE void transpose(Rows<F> from, std::int64_t rows, std::int64_t columns, Rows<F> to) {
  typedef F Vector __attribute__((vector_size(8 * sizeof(F))));
  for (std::int64_t i = 0; i < rows; i += 8) {
    for (std::int64_t j = 0; j < columns; j += 8) {
      Vector a[8], pairs[8], fours[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) std::memcpy(&a[r], from[i + r] + j, sizeof a[r]);
#pragma GCC unroll 4
      for (int r = 0; r < 8; r += 2) {
        pairs[r] = __builtin_shufflevector(a[r], a[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[r + 1] = __builtin_shufflevector(a[r], a[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 8; r += 4) {  // columns c and c + 4 of four rows, in fours[r + c]
        fours[r] = __builtin_shufflevector(pairs[r], pairs[r + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[r + 1] = __builtin_shufflevector(pairs[r], pairs[r + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        fours[r + 2] = __builtin_shufflevector(pairs[r + 1], pairs[r + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[r + 3] = __builtin_shufflevector(pairs[r + 1], pairs[r + 3], 2, 3, 10, 11, 6, 7, 14, 15);
      }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const Vector low = __builtin_shufflevector(fours[c], fours[c + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        const Vector high = __builtin_shufflevector(fours[c], fours[c + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        std::memcpy(to[j + c] + i, &low, sizeof low);
        std::memcpy(to[j + c + 4] + i, &high, sizeof high);
      }
    }
  }
}

/// The operands of a Product.
template <class Machine, class F>
LORA_TRAIN_INLINE void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, Left<F> left,
                                Rows<F> right, F keep, Rows<F> result, Triangle triangle = Triangle::kNone) {
  const Product<F> p{rows, columns, inner, left, right, keep, result, triangle};
  Machine::template call<multiply_all<typename Machine::Vector, Machine::kRows, F>>(p);
}

}  // namespace lora_train::kernels::chunked
