#include <ATen/ATen.h>

#include "lora_train/kernels/gemm/gemm.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

MatrixView view_of(const at::Tensor& t) { return {t.size(0), t.size(1), t.stride(0), t.stride(1)}; }

double element(const double* matrix, bool transposed, int64_t ld, int64_t row, int64_t column) {
  return transposed ? matrix[column + row * ld] : matrix[row + column * ld];
}

/// What a column-major BLAS does with the description: D = op(A) op(B) + C + bias along m.
void multiply(const ColumnMajorGemm& g, const double* a, const double* b, const double* c, const double* bias,
              double* d) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = c[i + j * g.ldc] + bias[i];
      for (int64_t p = 0; p < g.k; ++p) {
        sum += element(a, g.transpose_a, g.lda, i, p) * element(b, g.transpose_b, g.ldb, p, j);
      }
      d[i + j * g.ldd] = sum;
    }
  }
}

enum class Storage { kRows, kRowsWithGaps, kColumns, kColumnsWithGaps, kCut };

at::Tensor stored_as(Storage storage, const at::Tensor& t) {
  switch (storage) {
    case Storage::kRows: return t.clone();
    case Storage::kRowsWithGaps: return with_row_gaps(t);
    case Storage::kColumns: return t.t().contiguous().t();
    case Storage::kColumnsWithGaps: return with_row_gaps(t.t().contiguous()).t();
    case Storage::kCut: break;
  }
  auto wide = at::full({t.size(0), t.size(1) + 7}, 1e9, t.options());
  auto cut = wide.narrow(1, 2, t.size(1));
  cut.copy_(t);
  return cut;
}

// BLAS wants ld of at least the number of stored rows, also where there is one column.
void expect_valid(const ColumnMajorGemm& g) {
  EXPECT_GE(g.lda, g.transpose_a ? g.k : g.m);
  EXPECT_GE(g.ldb, g.transpose_b ? g.n : g.k);
  EXPECT_GE(g.ldc, g.m);
  EXPECT_GE(g.ldd, g.m);
}

TEST(GemmLayout, DescribesEveryStorageOfEveryOperand) {
  constexpr std::array kInputs = {Storage::kRows, Storage::kRowsWithGaps, Storage::kColumns, Storage::kColumnsWithGaps,
                                  Storage::kCut};
  constexpr std::array kOutputs = {Storage::kRows, Storage::kRowsWithGaps, Storage::kCut};
  const std::vector<std::array<int64_t, 3>> sizes = {{1, 1, 1}, {1, 4, 3}, {5, 1, 3}, {5, 4, 1}, {1, 1, 6},
                                                     {1, 6, 1}, {6, 1, 1}, {3, 5, 7}, {8, 4, 6}};
  for (const auto& [M, N, K] : sizes) {
    const auto a = uniform({M, K}, 1, at::kDouble), b = uniform({K, N}, 2, at::kDouble);
    const auto c = uniform({M, N}, 3, at::kDouble), bias = uniform({N}, 4, at::kDouble);
    for (const auto storage_a : kInputs) {
      for (const auto storage_b : kInputs) {
        for (const auto storage_y : kOutputs) {
          const auto sa = stored_as(storage_a, a), sb = stored_as(storage_b, b), sc = stored_as(storage_y, c);
          auto y =
              stored_as(kOutputs[(static_cast<std::size_t>(storage_y) + 1) % 2], at::full({M, N}, 7.0, at::kDouble));
          const auto g = column_major_gemm(view_of(sa), view_of(sb), view_of(sc), view_of(y));
          ASSERT_TRUE(g) << M << "x" << N << "x" << K;
          expect_valid(*g);
          multiply(*g, sb.const_data_ptr<double>(), sa.const_data_ptr<double>(), sc.const_data_ptr<double>(),
                   bias.const_data_ptr<double>(), y.mutable_data_ptr<double>());
          EXPECT_CLOSE(y, at::addmm(c, a, b) + bias, 1e-13) << M << "x" << N << "x" << K;
        }
      }
    }
  }
}

TEST(GemmLayout, RefusesWhatBlasCannotBeTold) {
  const MatrixView plain{4, 4, 4, 1};
  const auto with_a = [&](const MatrixView& a) { return column_major_gemm(a, plain, plain, plain).has_value(); };
  EXPECT_TRUE(with_a(plain));
  EXPECT_FALSE(with_a({4, 4, 0, 1}));  // expanded rows
  EXPECT_FALSE(with_a({4, 4, 3, 1}));  // overlapping rows
  EXPECT_FALSE(with_a({4, 4, 8, 2}));  // every second column
  EXPECT_FALSE(with_a({4, 4, 1, 3}));
  EXPECT_FALSE(column_major_gemm(plain, plain, plain, {4, 4, 1, 4}).has_value());  // y by columns
  EXPECT_FALSE(column_major_gemm(plain, plain, {4, 4, 1, 4}, plain).has_value());
}

TEST(GemmLayout, AlignmentIsTheLargestPowerOfTwo) {
  EXPECT_EQ(alignment_of(0x1000), 256u);
  EXPECT_EQ(alignment_of(0x1010), 16u);
  EXPECT_EQ(alignment_of(0x1002), 2u);
  EXPECT_EQ(alignment_of(0x1001), 1u);
  EXPECT_EQ(alignment_of(0x1040, 32), 32u);
}

}  // namespace
}  // namespace lora_train::kernels
