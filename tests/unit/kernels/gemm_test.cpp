#include "lora_train/kernels/gemm/gemm.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

// M rows, N columns, K summed over.
namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Size {
  int64_t M, N, K;
};
const std::vector<Size> kSizes = {{1, 1, 1},    {1, 9, 5},    {7, 1, 3},    {5, 6, 1},
                                  {33, 65, 17}, {64, 40, 96}, {96, 128, 72}};

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
  const auto place = GetParam();
  for (const auto& [M, N, K] : kSizes) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        const auto a = operand(place, uniform({M, K}, 1), a_transposed);
        const auto b = operand(place, uniform({K, N}, 2), b_transposed);
        auto y = place.empty({M, N});
        gemm(a, b, y);
        EXPECT_CLOSE(y, expected(a, b), tolerance(place.dtype)) << M << "x" << N << "x" << K;
        EXPECT_TRUE(gaps_are_untouched(y));
      }
    }
  }
}

TEST_P(Gemm, AddsBiasAndResidual) {
  const auto place = GetParam();
  for (const auto& [M, N, K] : kSizes) {
    const auto a = place.put(uniform({M, K}, 1)), b = operand(place, uniform({K, N}, 2), true);
    const auto bias = uniform({N}, 3).to(at::Device(place.device), place.dtype),
               residual = place.put(uniform({M, N}, 4));
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        auto y = place.empty({M, N});
        auto want = expected(a, b, 0.5);
        GemmExtras extras{.alpha = 0.5};
        if (with_bias) extras.bias = bias, want += f64(bias);
        if (with_residual) extras.residual = residual, want += f64(residual);
        gemm(a, b, y, extras);
        EXPECT_CLOSE(y, want, tolerance(place.dtype)) << M << "x" << N << "x" << K << with_bias << with_residual;
        EXPECT_TRUE(gaps_are_untouched(y));
      }
    }
  }
}

TEST_P(Gemm, AddsToWhatIsThere) {
  const auto place = GetParam();
  for (const auto& [M, N, K] : kSizes) {
    const auto a = operand(place, uniform({M, K}, 1), true), b = place.put(uniform({K, N}, 2));
    auto y = place.put(uniform({M, N}, 3));
    const auto want = f64(y) + expected(a, b, 2);
    gemm(a, b, y, {.accumulate = true, .alpha = 2});
    EXPECT_CLOSE(y, want, tolerance(place.dtype)) << M << "x" << N << "x" << K;
    EXPECT_TRUE(gaps_are_untouched(y));
  }
}

TEST_P(Gemm, GradientsOfWeightsAreFp32) {
  const auto place = GetParam();
  const auto dtype = place.dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (const bool accumulate : {false, true}) {
    const auto a = operand(place, uniform({33, 48}, 1), true), b = place.put(uniform({48, 65}, 2));
    auto y = with_row_gaps(uniform({33, 65}, 3).to(at::Device(place.device), dtype));
    const auto want = expected(a, b) + (accumulate ? f64(y) : at::zeros({33, 65}, at::kDouble));
    gemm(a, b, y, {.accumulate = accumulate});
    EXPECT_CLOSE(y, want, tolerance(place.dtype));
    EXPECT_TRUE(gaps_are_untouched(y));
  }
}

TEST_P(Gemm, TakesColumnsOutOfAWiderBuffer) {
  const auto place = GetParam();
  const auto wide = uniform({24, 40}, 1).to(at::Device(place.device), place.dtype);
  auto target = at::full({24, 40}, 7.0, wide.options());
  auto y = target.narrow(1, 8, 16);
  const auto a = wide.narrow(1, 16, 24), b = uniform({24, 16}, 2).to(wide.options());
  gemm(a, b, y);
  EXPECT_CLOSE(y, expected(a, b), tolerance(place.dtype));
  EXPECT_TRUE((target.narrow(1, 0, 8) == 7).all().item<bool>() && (target.narrow(1, 24, 16) == 7).all().item<bool>());
}

TEST_P(Gemm, GivesTheSameBitsTwice) {
  const auto place = GetParam();
  const auto a = place.put(uniform({65, 300}, 1)), b = place.put(uniform({300, 33}, 2));
  auto first = place.empty({65, 33}), second = place.empty({65, 33});
  gemm(a, b, first);
  gemm(a, b, second);
  EXPECT_TRUE(at::equal(first, second));
}

TEST(GemmOnCpu, HasTheBitsOfAten) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
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
}

}  // namespace
}  // namespace lora_train::kernels
