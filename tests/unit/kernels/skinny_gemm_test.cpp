#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

// M rows, N outputs, K input features.
namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Size {
  int64_t M, N, K;
};
// K below, at and above whole vectors of 8, 16 and 32; N that is no multiple of a tile, and one of several threads.
const std::vector<Size> kSizes = {{1, 1, 1},   {1, 9, 5},    {2, 3, 31},   {3, 8, 32},    {5, 6, 33},
                                  {7, 13, 64}, {16, 40, 95}, {4, 130, 96}, {1, 4099, 40}, {33, 600, 260}};

class SkinnyGemm : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(SkinnyGemm);

TEST_P(SkinnyGemm, MatchesAProductInFp64) {
  const auto place = GetParam();
  for (const auto& [M, N, K] : kSizes) {
    const auto x = place.put(uniform({M, K}, 1)), weight = place.put(uniform({N, K}, 2));
    const auto bias = uniform({N}, 3).to(at::Device(place.device), place.dtype),
               residual = place.put(uniform({M, N}, 4));
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
        skinny_gemm(x, weight, b, r, y);
        EXPECT_CLOSE(y, want, tolerance(place.dtype)) << M << "x" << N << "x" << K << with_bias << with_residual;
        EXPECT_TRUE(gaps_are_untouched(y));
        skinny_gemm(x, weight, b, r, y, /*alpha=*/0.22);
        EXPECT_CLOSE(y, scaled, tolerance(place.dtype)) << M << "x" << N << "x" << K << with_bias << with_residual;
      }
    }
  }
}

TEST_P(SkinnyGemm, OfBf16IntoFp32RoundsNothing) {
  const auto place = GetParam();
  if (place.dtype != at::kBFloat16 || place.device != at::kCPU) GTEST_SKIP() << "a matter of bf16 on a CPU";
  const auto x = place.put(uniform({3, 200}, 1)), weight = place.put(uniform({17, 200}, 2));
  auto y = at::empty({3, 17});
  skinny_gemm(x, weight, {}, {}, y);
  EXPECT_CLOSE(y, at::mm(f64(x), f64(weight).t()), tolerance(at::kFloat));
}

TEST(SkinnyGemmOfMixedTypes, TakesABf16WeightBesideAnFp32X) {
  for (const auto& [M, N, K] : kSizes) {
    const auto x = uniform({M, K}, 1), weight = uniform({N, K}, 2, at::kBFloat16), residual = uniform({M, N}, 4);
    auto y = at::empty({M, N}), sum = residual.clone();
    skinny_gemm(x, weight, {}, residual, y, /*alpha=*/0.22);
    EXPECT_CLOSE(y, at::mm(f64(x), f64(weight).t()) * 0.22 + f64(residual), tolerance(at::kFloat))
        << M << "x" << N << "x" << K;
    skinny_gemm(x, weight, {}, sum, sum, /*alpha=*/0.22);  // onto itself
    EXPECT_TRUE(at::equal(sum, y)) << M << "x" << N << "x" << K;
    const auto rounded = x.to(at::kBFloat16);
    auto of_bf16 = at::empty({M, N});
    skinny_gemm(rounded, weight, {}, {}, of_bf16);
    skinny_gemm(rounded.to(at::kFloat), weight, {}, {}, y);
    EXPECT_TRUE(at::equal(y, of_bf16)) << M << "x" << N << "x" << K;
  }
  auto y = at::empty({1, 2}, at::kBFloat16);
  EXPECT_THROW(skinny_gemm(at::ones({1, 3}, at::kBFloat16), at::ones({2, 3}), {}, {}, y), ShapeError);
}

TEST_P(SkinnyGemm, ARowHasTheSameBitsWhateverElseIsThere) {
  const auto place = GetParam();
  if (place.dtype == at::kDouble || place.device != at::kCPU) GTEST_SKIP() << "a matter of our kernel for CPUs";
  const int64_t M = 21, N = 1030, K = 605;  // more than a block of rows, of outputs, and a chunk of K
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

TEST(SkinnyGemmArguments, RefusesShapesThatDoNotFit) {
  const auto x = at::ones({2, 3}), weight = at::ones({4, 5});
  auto y = at::empty({2, 4});
  EXPECT_THROW(skinny_gemm(x, weight, {}, {}, y), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
