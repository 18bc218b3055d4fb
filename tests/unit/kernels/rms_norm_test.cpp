#include "lora_train/kernels/rms_norm/rms_norm.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr double kEps = 1e-6;
// On CUDA a block takes one row or two, whole ones in registers or what is left of them (from 16384 bf16, 8192 floats on).
const std::vector<std::pair<int64_t, int64_t>> kSizes = {{1, 1},    {3, 7},    {5, 33},   {5, 64},   {4, 256},
                                                         {67, 129}, {2, 3584}, {1, 4104}, {1, 4101}, {2, 17000}};

constexpr double kOffsets[] = {0, 1};  ///< of the weight: Llama's and Gemma's

class RmsNorm : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(RmsNorm);

TEST(RmsNormReference, MatchesAtenAutogradInFp64) {
  for (const double offset : kOffsets) {
    const auto x = uniform({5, 33}, 1, at::kDouble).requires_grad_(),
               w = uniform({33}, 2, at::kDouble).requires_grad_();
    const auto dy = uniform({5, 33}, 3, at::kDouble);
    const auto expected = at::rms_norm(x, {33}, w + offset, kEps);
    expected.backward(dy);
    auto y = at::empty({5, 33}, at::kDouble), rstd = at::empty({5}, at::kDouble), dx = at::empty({5, 33}, at::kDouble);
    auto dw = at::ones({33}, at::kDouble);
    rms_norm_forward_reference(x.detach(), w.detach(), kEps, y, rstd, offset);
    rms_norm_backward_reference(dy, x.detach(), w.detach(), rstd, dx, false, &dw, offset);
    EXPECT_CLOSE(y, expected.detach(), 1e-12);
    EXPECT_CLOSE(dx, x.grad(), 1e-12);
    EXPECT_CLOSE(dw, w.grad() + 1, 1e-12);
  }
}

TEST(RmsNormReference, GradientsMatchCentralDifferences) {
  const auto x = uniform({3, 7}, 1, at::kDouble), w = uniform({7}, 2, at::kDouble),
             dy = uniform({3, 7}, 3, at::kDouble);
  const auto residual = uniform({3, 7}, 4, at::kDouble);
  for (const double offset : kOffsets) {
    auto y = at::empty_like(x), rstd = at::empty({3}, at::kDouble), dx = at::empty_like(x);
    auto dw = at::zeros({7}, at::kDouble);
    const auto loss = [&](const at::Tensor& values, const at::Tensor& weight) {
      rms_norm_forward_reference(values, weight, kEps, y, rstd, offset, residual);
      return (y * dy).sum().item<double>();
    };
    const auto expected = central_differences([&](const at::Tensor& values) { return loss(values, w); }, x);
    const auto expected_dw = central_differences([&](const at::Tensor& values) { return loss(x, values); }, w);
    loss(x, w);
    rms_norm_backward_reference(dy, x, w, rstd, dx, false, &dw, offset);
    EXPECT_CLOSE(dx, expected, kDifferenceTolerance);
    EXPECT_CLOSE(dw, expected_dw, kDifferenceTolerance);
  }
}

void expect_forward(const Place& place, int64_t rows, int64_t D, double offset) {
  const auto x = place.put(uniform({rows, D}, 1)), w = uniform({D}, 2).to(place.device, place.dtype);
  for (const auto& residual : {at::Tensor(), place.put(uniform({rows, D}, 3))}) {
    auto y = place.empty({rows, D}), rstd = place.statistic({rows});
    rms_norm_forward(x, w, kEps, y, rstd, offset, residual);
    auto expected_y = at::empty({rows, D}, at::kDouble), expected_rstd = at::empty({rows}, at::kDouble);
    rms_norm_forward_reference(f64(x), f64(w), kEps, expected_y, expected_rstd, offset,
                               residual.defined() ? f64(residual) : residual);
    EXPECT_CLOSE(y, expected_y, tolerance(place.dtype))
        << rows << "x" << D << " offset " << offset << " residual " << residual.defined();
    // A CPU sums long rows in few lanes: 1.5e-6 for 17000 elements.
    const double of_sums = D > 8192 ? 2 * kTightFloatTolerance : kTightFloatTolerance;
    EXPECT_CLOSE(rstd, expected_rstd, std::min(of_sums, tolerance(place.dtype)));
    EXPECT_TRUE(gaps_are_untouched(y));
    if (!residual.defined()) continue;
    auto in_place = residual.clone();
    rms_norm_forward(x, w, kEps, in_place, rstd, offset, in_place);
    EXPECT_TRUE(at::equal(in_place, y)) << "y in the place of the residual";
  }
}

TEST_P(RmsNorm, ForwardMatchesReferenceAndAddsToAResidual) {
  for (const auto& [rows, D] : kSizes) {
    for (const double offset : kOffsets) expect_forward(GetParam(), rows, D, offset);
  }
}

void expect_backward(const Place& place, int64_t rows, int64_t D, double offset) {
  const auto x = place.put(uniform({rows, D}, 1)), dy = place.put(uniform({rows, D}, 3));
  const auto w = uniform({D}, 2).to(place.device, place.dtype);
  const auto rstd64 = (f64(x).square().mean(1) + kEps).rsqrt();
  const auto rstd = rstd64.to(place.statistic({1}).options());
  auto expected_dx = at::empty({rows, D}, at::kDouble), expected_dw = at::zeros({D}, at::kDouble);
  rms_norm_backward_reference(f64(dy), f64(x), f64(w), rstd64, expected_dx, false, &expected_dw, offset);
  auto dx = place.empty({rows, D}), dw = place.statistic({D});
  rms_norm_backward(dy, x, w, rstd, dx, /*accumulate=*/false, &dw, offset);
  EXPECT_CLOSE(dx, expected_dx, tolerance(place.dtype)) << rows << "x" << D << " offset " << offset;
  EXPECT_CLOSE(dw, expected_dw + 7, tolerance(place.dtype));
  EXPECT_TRUE(gaps_are_untouched(dx));
  auto sum = place.put(uniform({rows, D}, 4));
  const auto before = f64(sum);
  rms_norm_backward(dy, x, w, rstd, sum, /*accumulate=*/true, nullptr, offset);
  EXPECT_CLOSE(sum, before + expected_dx, tolerance(place.dtype));
  auto both = dy.clone(), dw_again = place.statistic({D});
  rms_norm_backward(both, x, w, rstd, both, /*accumulate=*/false, &dw_again, offset);
  EXPECT_TRUE(at::equal(both, dx) && at::equal(dw_again, dw)) << "dx in the place of dy";
  auto exact = f64(dy), exact_dw = at::zeros({D}, at::kDouble);
  rms_norm_backward_reference(exact, f64(x), f64(w), rstd64, exact, false, &exact_dw, offset);
  EXPECT_TRUE(at::equal(exact, expected_dx) && at::equal(exact_dw, expected_dw));
}

TEST_P(RmsNorm, BackwardMatchesReferenceAndAccumulates) {
  for (const auto& [rows, D] : kSizes) {
    if (D == 1) continue;  // its gradient is zero but for eps
    for (const double offset : kOffsets) expect_backward(GetParam(), rows, D, offset);
  }
}

TEST(RmsNormInBf16, RoundsBeforeTheWeightAsTransformersDoes) {
  const Place place{at::kCPU, at::kBFloat16};
  const auto x = place.put(uniform({9, 129}, 1)), w = uniform({129}, 2).to(place.device, place.dtype);
  auto y = place.empty({9, 129}), rstd = place.statistic({9});
  rms_norm_forward(x, w, kEps, y, rstd);
  const auto normed = (x.to(at::kFloat) * rstd.unsqueeze(1)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(y.contiguous(), normed * w));
}

TEST(RmsNormInBf16, WithAnOffsetRoundsOnceAndAgainAfterTheResidual) {
  const Place place{at::kCPU, at::kBFloat16};
  const auto x = place.put(uniform({9, 129}, 1)), w = uniform({129}, 2).to(place.device, place.dtype);
  const auto residual = place.put(uniform({9, 129}, 3));
  auto y = place.empty({9, 129}), sum = place.empty({9, 129}), rstd = place.statistic({9});
  rms_norm_forward(x, w, kEps, y, rstd, 1);
  const auto normed = (x.to(at::kFloat) * rstd.unsqueeze(1) * (1 + w.to(at::kFloat))).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(y.contiguous(), normed));
  rms_norm_forward(x, w, kEps, sum, rstd, 1, residual);
  EXPECT_TRUE(at::equal(sum.contiguous(), residual + normed));
}

TEST(RmsNorm, RefusesAResidualOfAnotherShape) {
  auto y = at::empty({2, 4}), rstd = at::empty({2});
  EXPECT_THROW(rms_norm_forward(at::ones({2, 4}), at::ones({4}), kEps, y, rstd, 0, at::ones({2, 3})), ShapeError);
}

TEST(RmsNorm, RefusesAWeightOfAnotherLength) {
  auto y = at::empty({2, 4}), rstd = at::empty({2});
  EXPECT_THROW(rms_norm_forward(at::ones({2, 4}), at::ones({5}), kEps, y, rstd), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
