// M rows, N columns (of a skinny product outputs), K summed over.
#include "lora_train/kernels/gemm/gemm.h"

#include "gemm/gemm_parts.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Size {
  int64_t M, N, K;
};
const std::vector<Size> kSizes = {{1, 1, 1},    {1, 9, 5},    {7, 1, 3},     {5, 6, 1},
                                  {33, 65, 17}, {64, 40, 96}, {96, 128, 72}, {65, 33, 300}};

/// The values of t on the place, with gaps between the rows, or between the columns when transposed.
at::Tensor operand(const Place& place, const at::Tensor& t, bool transposed) {
  return transposed ? place.put(t.t()).t() : place.put(t);
}

/// What the tests compare with: the operands as the place has rounded them, in fp64.
at::Tensor expected(const at::Tensor& a, const at::Tensor& b, double alpha = 1) {
  return at::mm(f64(a), f64(b)) * alpha;
}

class Gemm : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Gemm);

TEST_P(Gemm, MultipliesWhateverIsTransposedOrStrided) {
  for (const auto& [M, N, K] : kSizes) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        const auto a = operand(place, uniform({M, K}, 1), a_transposed);
        const auto b = operand(place, uniform({K, N}, 2), b_transposed);
        auto y = place.empty({M, N}), again = place.empty({M, N});
        gemm(a, b, y);
        EXPECT_TRUE(rows_are_close(y, expected(a, b), tolerance(place.dtype))) << M << "x" << N << "x" << K;
        gemm(a, b, again);
        EXPECT_TRUE(at::equal(again, y)) << "other bits";
      }
    }
  }
}

TEST_P(Gemm, AddsBiasAndResidual) {
  for (const auto& [M, N, K] : kSizes) {
    const auto a = place.put(uniform({M, K}, 1)), b = operand(place, uniform({K, N}, 2), true);
    const auto bias = uniform({N}, 3).to(place.options()), residual = place.put(uniform({M, N}, 4));
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        auto y = place.empty({M, N});
        auto want = expected(a, b, 0.5);
        GemmExtras extras{.alpha = 0.5};
        if (with_bias) extras.bias = bias, want += f64(bias);
        if (with_residual) extras.residual = residual, want += f64(residual);
        gemm(a, b, y, extras);
        EXPECT_TRUE(rows_are_close(y, want, tolerance(place.dtype)))
            << M << "x" << N << "x" << K << with_bias << with_residual;
      }
    }
  }
}

TEST_P(Gemm, AddsToWhatIsThere) {
  for (const auto& [M, N, K] : kSizes) {
    const auto a = operand(place, uniform({M, K}, 1), true), b = place.put(uniform({K, N}, 2));
    auto y = place.put(uniform({M, N}, 3));
    const auto want = f64(y) + expected(a, b, 2);
    gemm(a, b, y, {.accumulate = true, .alpha = 2});
    EXPECT_TRUE(rows_are_close(y, want, tolerance(place.dtype))) << M << "x" << N << "x" << K;
  }
}

TEST_P(Gemm, GradientsOfWeightsAreFp32) {
  const auto dtype = place.dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (const bool accumulate : {false, true}) {
    const auto a = operand(place, uniform({33, 48}, 1), true), b = place.put(uniform({48, 65}, 2));
    auto y = with_row_gaps(uniform({33, 65}, 3).to(at::Device(place.device), dtype));
    const auto want = expected(a, b) + (accumulate ? f64(y) : at::zeros({33, 65}, at::kDouble));
    gemm(a, b, y, {.accumulate = accumulate});
    EXPECT_TRUE(rows_are_close(y, want, tolerance(place.dtype)));
  }
}

TEST_P(Gemm, TakesColumnsOutOfAWiderBuffer) {
  const auto wide = uniform({24, 40}, 1).to(place.options());
  auto target = at::full({24, 40}, 7.0, wide.options());
  auto y = target.narrow(1, 8, 16);
  const auto a = wide.narrow(1, 16, 24), b = uniform({24, 16}, 2).to(wide.options());
  gemm(a, b, y);
  EXPECT_CLOSE(y, expected(a, b), tolerance(place.dtype));
  EXPECT_TRUE((target.narrow(1, 0, 8) == 7).all().item<bool>() && (target.narrow(1, 24, 16) == 7).all().item<bool>());
}

TEST(GemmOnCpu, HasTheBitsOfAtenBelowAvx512) {
  const BelowAvx512 older_cpu;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    if (dtype == at::kBFloat16 && !has_bf16_gemm()) continue;
    const auto a = uniform({37, 129}, 1, dtype), w = uniform({65, 129}, 2, dtype), bias = uniform({65}, 3, dtype);
    const auto residual = uniform({37, 65}, 4, dtype);
    auto y = at::empty({37, 65}, dtype);
    gemm(a, w.t(), y);
    EXPECT_TRUE(at::equal(y, at::mm(a, w.t())));
    gemm(a, w.t(), y, {.bias = bias});
    EXPECT_TRUE(at::equal(y, at::addmm(bias, a, w.t())));
    gemm(a, w.t(), y, {.bias = bias, .residual = residual});
    EXPECT_TRUE(at::equal(y, at::addmm(residual, a, w.t()) + bias));
    auto sum = residual.clone();
    gemm(a, w.t(), sum, {.accumulate = true});
    EXPECT_TRUE(at::equal(sum, at::addmm(residual, a, w.t())));
    gemm(a, w.t(), y, {.residual = residual, .alpha = 0.22});
    EXPECT_TRUE(at::equal(y, at::addmm(residual, a, w.t(), 1, 0.22)));
  }
}

TEST(GemmOnCpu, InBlocksRoundsOnceWithTheSameBitsForAnyThreadsAndRows) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU has no AVX-512";
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // Rows of a block 64, columns of a group 128, chunks of K 1024; the larger ones for several tasks.
    for (const auto& [M, N, K] : {Size{1, 1, 2}, {63, 130, 1026}, {129, 200, 2048}, {200, 49, 5000}, {300, 513, 64}}) {
      for (const bool b_transposed : {false, true}) {
        const auto a = with_row_gaps(uniform({M, K}, 1, dtype));
        const auto b =
            b_transposed ? with_row_gaps(uniform({N, K}, 2, dtype)).t() : with_row_gaps(uniform({K, N}, 2, dtype));
        const auto bias = uniform({N}, 3, dtype), residual = with_row_gaps(uniform({M, N}, 4, dtype));
        auto y = at::empty({M, N}, dtype), again = at::empty_like(y), first = at::empty({1, N}, dtype);
        gemm(a, b, y, {.bias = bias, .residual = residual, .alpha = 0.5});
        const auto want = expected(a, b, 0.5) + f64(bias) + f64(residual);
        const double half_ulp = dtype == at::kFloat ? 1e-4 : 1.001 / 256;
        EXPECT_LE(((f64(y) - want).abs() / want.abs().clamp_min(1)).max().item<double>(), half_ulp) << M << "x" << N;
        for (const int count : {1, 2, 3}) {
          at::set_num_threads(count);
          gemm(a, b, again, {.bias = bias, .residual = residual, .alpha = 0.5});
          EXPECT_TRUE(at::equal(y, again)) << count << " threads, " << M << "x" << N << "x" << K;
        }
        at::set_num_threads(threads);
        gemm(a.narrow(0, M - 1, 1), b, first, {.bias = bias, .residual = residual.narrow(0, M - 1, 1), .alpha = 0.5});
        EXPECT_TRUE(at::equal(y.narrow(0, M - 1, 1), first)) << "a row alone, " << M << "x" << N << "x" << K;
      }
    }
  }
}

TEST(GemmOnCpu, InFp32RoundsOnce) {
  for (const auto& [M, N, K] : {Size{33, 65, 17}, {2050, 3, 70}, {3, 2049, 4100}}) {  // panels are of 2048
    const auto a = uniform({M, K}, 1, at::kBFloat16), w = uniform({N, K}, 2, at::kBFloat16);
    const auto bias = uniform({N}, 3, at::kBFloat16), residual = uniform({M, N}, 4, at::kBFloat16);
    const auto product = expected(a, w.t(), 0.5);
    auto y = at::empty({M, N}, at::kBFloat16);
    gemm_widened(a, w.t(), y, {.bias = bias, .residual = residual, .alpha = 0.5});
    auto want = product + f64(bias) + f64(residual);
    constexpr double kHalfUlp = 1.001 / 256;
    EXPECT_LE(((f64(y) - want).abs() / want.abs().clamp_min(1e-2)).max().item<double>(), kHalfUlp);
    want = f64(y) + product + f64(bias);
    gemm_widened(a, w.t().contiguous(), y, {.bias = bias, .accumulate = true, .alpha = 0.5});
    EXPECT_LE(((f64(y) - want).abs() / want.abs().clamp_min(1e-2)).max().item<double>(), kHalfUlp);
    auto sum = residual.to(at::kFloat);
    gemm_widened(a, w.t(), sum, {.accumulate = true, .alpha = 0.5});
    EXPECT_LE((f64(sum) - product - f64(residual)).abs().max().item<double>(), 1e-4) << "rounded to bf16";
    gemm(a.to(at::kFloat), w.t(), sum);
    EXPECT_LE((f64(sum) - 2 * product).abs().max().item<double>(), 1e-4);
  }
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const auto a = at::ones({2, 3}), b = at::ones({3, 4});
  auto y = at::ones({2, 4}), narrow = at::ones({2, 3}), wrong_dtype = at::ones({2, 4}, at::kBFloat16);
  auto columns = at::ones({4, 2}).t();
  EXPECT_THROW(gemm(a, a, y), ShapeError);
  EXPECT_THROW(gemm(a, b, narrow), ShapeError);
  EXPECT_THROW(gemm(a, b, wrong_dtype), ShapeError);
  EXPECT_THROW(gemm(a, b, columns), ShapeError);
  EXPECT_THROW(gemm(a, b, y, {.bias = at::ones({3})}), ShapeError);
  EXPECT_THROW(gemm(a, b, y, {.residual = y}), ShapeError);
  EXPECT_THROW(gemm(a, b, y, {.residual = at::ones({2, 4}), .accumulate = true}), ShapeError);
  EXPECT_THROW(gemm(a, b, y, {.residual = at::ones({4})}), ShapeError);
  EXPECT_THROW(skinny_gemm(a, at::ones({4, 5}), {}, {}, y), ShapeError);
  EXPECT_THROW(skinny_gemm(a.to(at::kBFloat16), at::ones({4, 3}), {}, {}, wrong_dtype), ShapeError);
}

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

// K below, at and above whole vectors of 8, 16 and 32; N that is no multiple of a tile, and one of several threads.
const std::vector<Size> kSkinnySizes = {{1, 1, 1},   {1, 9, 5},    {2, 3, 31},   {3, 8, 32},    {5, 6, 33},
                                        {7, 13, 64}, {16, 40, 95}, {4, 130, 96}, {1, 4099, 40}, {33, 600, 260}};

class SkinnyGemm : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(SkinnyGemm);

TEST_P(SkinnyGemm, MatchesAProductInFp64) {
  for (const auto& [M, N, K] : kSkinnySizes) {
    const auto x = place.put(uniform({M, K}, 1)), weight = place.put(uniform({N, K}, 2));
    const auto bias = uniform({N}, 3).to(place.options()), residual = place.put(uniform({M, N}, 4));
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        auto y = place.empty({M, N});
        auto want = at::mm(f64(x), f64(weight).t());
        auto scaled = want * 0.22;
        for (at::Tensor* t : {&want, &scaled}) {
          if (with_bias) *t += f64(bias);
          if (with_residual) *t += f64(residual);
        }
        const auto& b = with_bias ? bias : at::Tensor();
        const auto& r = with_residual ? residual : at::Tensor();
        SCOPED_TRACE(::testing::Message() << M << "x" << N << "x" << K << with_bias << with_residual);
        skinny_gemm(x, weight, b, r, y);
        EXPECT_TRUE(rows_are_close(y, want, tolerance(place.dtype)));
        skinny_gemm(x, weight, b, r, y, /*alpha=*/0.22);
        EXPECT_CLOSE(y, scaled, tolerance(place.dtype));
      }
    }
  }
}

TEST(SkinnyGemmOfMixedTypes, TakesABf16WeightBesideAnFp32X) {
  for (const auto& [M, N, K] : kSkinnySizes) {
    const auto x = uniform({M, K}, 1), weight = uniform({N, K}, 2, at::kBFloat16), residual = uniform({M, N}, 4);
    auto y = at::empty({M, N}), sum = residual.clone();
    skinny_gemm(x, weight, {}, residual, y, /*alpha=*/0.22);
    EXPECT_CLOSE(y, at::mm(f64(x), f64(weight).t()) * 0.22 + f64(residual), tolerance(at::kFloat))
        << M << "x" << N << "x" << K;
    skinny_gemm(x, weight, {}, sum, sum, /*alpha=*/0.22);  // onto itself
    EXPECT_TRUE(at::equal(sum, y)) << M << "x" << N << "x" << K;
    const auto rounded = x.to(at::kBFloat16);
    auto pairs = at::empty({M, N}), widened = at::empty({M, N});
    skinny_gemm(rounded, weight, {}, {}, pairs);
    skinny_gemm(rounded.to(at::kFloat), weight, {}, {}, y);
    EXPECT_CLOSE(pairs, f64(y), tolerance(at::kFloat)) << M << "x" << N << "x" << K;
    const BelowAvx512 below;
    skinny_gemm(rounded, weight, {}, {}, widened);
    EXPECT_TRUE(at::equal(y, widened)) << M << "x" << N << "x" << K;
  }
}

TEST_P(SkinnyGemm, ARowHasTheSameBitsWhateverElseIsThere) {
  if (place.dtype == at::kDouble || place.device != at::kCPU) GTEST_SKIP() << "a matter of our kernel for CPUs";
  const int64_t M = 21, N = 1030;  // more than a block of rows, of outputs, and a chunk of K
  for (const int64_t K : {605, 1206}) {
    SCOPED_TRACE(K);
    const auto x = place.put(uniform({M, K}, 1)), weight = place.put(uniform({N, K}, 2));
    auto all = place.empty({M, N});
    skinny_gemm(x, weight, {}, {}, all);
    for (int64_t m = 0; m < M; ++m) {
      auto one = place.empty({1, N});
      skinny_gemm(x.narrow(0, m, 1), weight, {}, {}, one);
      EXPECT_TRUE(at::equal(one[0], all[m])) << m;
      auto some = place.empty({1, 10});  // another share of the threads, and another place in a tile
      skinny_gemm(x.narrow(0, m, 1), weight.narrow(0, 501, 10), {}, {}, some);
      EXPECT_TRUE(at::equal(some[0], all[m].narrow(0, 501, 10))) << m;
      if (m == 0) continue;
      auto first = place.empty({m, N});
      skinny_gemm(x.narrow(0, 0, m), weight, {}, {}, first);
      EXPECT_TRUE(at::equal(first, all.narrow(0, 0, m))) << m;
    }
  }
}

}  // namespace
}  // namespace lora_train::kernels
