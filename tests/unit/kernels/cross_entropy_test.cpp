#include "lora_train/kernels/cross_entropy/cross_entropy.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class CrossEntropy : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(CrossEntropy);

CrossEntropyOutput output_for(const at::Tensor& logits) {
  const int64_t M = logits.size(0);
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::full({M}, 7, logits.options().dtype(dtype)), at::empty({M}, logits.options().dtype(at::kBool)),
          at::full({M}, 7, logits.options().dtype(at::kFloat))};
}

/// Gradients are divided by it.
at::Tensor per(double denominator, at::Device device = at::kCPU) {
  return at::scalar_tensor(denominator, at::dtype(at::kDouble).device(device));
}

at::Tensor targets_for(int64_t M, int64_t V) { return (at::arange(M, at::kLong) * 7919).remainder(V).to(at::kInt); }

TEST(CrossEntropyReference, MatchesAtenAutogradInFp64) {
  const auto logits = (uniform({5, 33}, 1, at::kDouble) * 8).detach().requires_grad_();
  const auto targets = targets_for(5, 33);
  const auto losses = at::cross_entropy_loss(logits, targets.to(at::kLong), {}, at::Reduction::None);
  losses.sum().mul(0.25).backward();
  auto in_place = logits.detach().clone();
  auto output = output_for(in_place);
  cross_entropy_in_place_reference(in_place, targets, {}, per(4), output);
  EXPECT_CLOSE(output.losses, losses.detach(), 1e-13);
  EXPECT_CLOSE(in_place, logits.grad(), 1e-13);
  const auto [largest, index] = logits.detach().softmax(1).max(1);
  EXPECT_CLOSE(output.confidence, largest, 1e-6);
  EXPECT_TRUE(at::equal(output.correct, index == targets));
}

TEST(CrossEntropyReference, GradientMatchesCentralDifferences) {
  const auto logits = uniform({3, 7}, 1, at::kDouble) * 3;
  const auto targets = targets_for(3, 7), weights = at::tensor({0.25F, 3.0F, -1.5F});
  auto output = output_for(logits);
  const auto expected = central_differences(
      [&](const at::Tensor& values) {
        auto copy = values.clone();
        cross_entropy_in_place_reference(copy, targets, {}, {}, output);
        return (output.losses * weights).sum().item<double>() * 0.5;
      },
      logits);
  auto gradient = logits.clone();
  cross_entropy_in_place_reference(gradient, targets, weights, per(2), output);
  EXPECT_CLOSE(gradient, expected, kDifferenceTolerance);
}

/// Every element against its own size: beside a target's gradient all others are small.
bool are_elements_close(const at::Tensor& got, const at::Tensor& want, at::ScalarType dtype) {
  const double limit = dtype == at::kBFloat16 ? 4e-3 : dtype == at::kFloat ? 5e-6 : 1e-10;
  return at::allclose(f64(got), want, limit, 0);
}

TEST_P(CrossEntropy, MatchesReference) {
  const auto place = GetParam();
  for (const auto& [M, V] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {3, 7}, {5, 1031}, {2, 50257}, {33, 257}}) {
    auto logits = (uniform({M, V}, 1) * 12).to(place.device, place.dtype);
    auto reference = f64(logits);
    const auto targets = targets_for(M, V);
    auto output = output_for(logits), expected = output_for(reference);
    cross_entropy_in_place_reference(reference, targets, {}, per(8), expected);
    const auto before = logits.clone();
    cross_entropy_in_place(logits, targets.to(place.device), {}, {}, output);
    EXPECT_TRUE(at::equal(logits, before)) << "logits must stay without a gradient";
    const double fp32_limit = std::min(kTightFloatTolerance, tolerance(place.dtype));
    EXPECT_CLOSE(output.losses, expected.losses, fp32_limit) << M << "x" << V;
    cross_entropy_in_place(logits, targets.to(place.device), {}, per(8, place.device), output);
    EXPECT_CLOSE(output.losses, expected.losses, fp32_limit) << M << "x" << V;
    EXPECT_CLOSE(output.confidence, expected.confidence, kTightFloatTolerance);
    EXPECT_TRUE(at::equal(output.correct.cpu(), expected.correct));
    EXPECT_CLOSE(logits, reference, place.dtype == at::kFloat ? 2 * kTightFloatTolerance : tolerance(place.dtype));
    EXPECT_TRUE(are_elements_close(logits, reference, place.dtype)) << M << "x" << V;
  }
}

TEST_P(CrossEntropy, WeightsScaleTheGradientOfTheirRow) {
  const auto place = GetParam();
  for (const auto& [M, V] : std::vector<std::pair<int64_t, int64_t>>{{5, 7}, {4, 1031}, {33, 257}}) {
    const auto start = (uniform({M, V}, 1) * 12).to(place.device, place.dtype);
    const auto targets = targets_for(M, V), weights = uniform({M}, 2).add_(0.5).mul_(3);
    weights[1] = 0;
    auto logits = start.clone(), reference = f64(start);
    auto output = output_for(logits), expected = output_for(reference);
    cross_entropy_in_place_reference(reference, targets, weights, per(8), expected);
    cross_entropy_in_place(logits, targets.to(place.device), weights.to(place.device), per(8, place.device), output);
    EXPECT_CLOSE(output.losses, expected.losses, std::min(kTightFloatTolerance, tolerance(place.dtype)))
        << "no weight in them";
    EXPECT_CLOSE(logits, reference, place.dtype == at::kFloat ? 2 * kTightFloatTolerance : tolerance(place.dtype));
    EXPECT_TRUE(logits[1].eq(0).all().item<bool>());
  }
}

TEST_P(CrossEntropy, WeightsOfOneChangeNoBit) {
  const auto place = GetParam();
  const auto start = (uniform({9, 1031}, 1) * 12).to(place.device, place.dtype);
  const auto targets = targets_for(9, 1031).to(place.device), ones = at::ones({9}, start.options().dtype(at::kFloat));
  for (const auto run : {cross_entropy_in_place, cross_entropy_in_place_reference}) {
    auto plain = start.clone(), weighted = start.clone();
    auto plain_output = output_for(plain), weighted_output = output_for(weighted);
    run(plain, targets, {}, per(7, place.device), plain_output);
    run(weighted, targets, ones, per(7, place.device), weighted_output);
    EXPECT_TRUE(at::equal(plain, weighted));
    EXPECT_TRUE(at::equal(plain_output.losses, weighted_output.losses));
  }
}

TEST_P(CrossEntropy, CountsTheFirstOfEqualLogitsAsCorrect) {
  const auto place = GetParam();
  auto logits = at::zeros({4, 67}, at::device(place.device).dtype(place.dtype));
  logits.slice(1, 40, 42).fill_(3);  // 40 and 41 are equal; the first of them wins
  auto output = output_for(logits);
  cross_entropy_in_place(logits, at::tensor({40, 41, 39, 66}, at::kInt).to(place.device), {}, {}, output);
  EXPECT_TRUE(at::equal(output.correct.cpu(), at::tensor({1, 0, 0, 0}, at::kInt).to(at::kBool)));
  logits.zero_();
  cross_entropy_in_place(logits, at::tensor({0, 1, 39, 66}, at::kInt).to(place.device), {}, {}, output);
  EXPECT_TRUE(at::equal(output.correct.cpu(), at::tensor({1, 0, 0, 0}, at::kInt).to(at::kBool)));
}

TEST_P(CrossEntropy, StandsLargeLogitsAndCarriesNaN) {
  const auto place = GetParam();
  auto logits = at::zeros({3, 67}, at::device(place.device).dtype(place.dtype));
  logits[0][5] = 1e4;
  logits[1][5] = -1e4;
  logits[2][60] = std::numeric_limits<double>::quiet_NaN();
  auto output = output_for(logits);
  cross_entropy_in_place(logits, at::tensor({4, 5, 1}, at::kInt).to(place.device), {}, per(1, place.device), output);
  const double big = at::scalar_tensor(1e4, at::kDouble).to(place.dtype).item<double>();
  EXPECT_NEAR(output.losses[0].item<double>(), big, 1e-3);
  EXPECT_NEAR(output.losses[1].item<double>(), big + std::log(66.0), 1e-2);
  EXPECT_TRUE(output.losses[2].isnan().item<bool>());
  EXPECT_TRUE(logits.slice(0, 0, 2).isfinite().all().item<bool>());
}

TEST_P(CrossEntropy, StandsMaskedLogitsAndCarriesInfinity) {
  const auto place = GetParam();
  auto logits = at::ones({3, 1031}, at::device(place.device).dtype(place.dtype));
  logits[0].slice(0, 0, 1031, 2).fill_(-HUGE_VAL);
  logits[1].fill_(-1e30);
  logits[2][600] = HUGE_VAL;
  auto output = output_for(logits);
  cross_entropy_in_place(logits, at::full({3}, 5, logits.options().dtype(at::kInt)), {}, per(8, place.device), output);
  EXPECT_NEAR(output.losses[0].item<double>(), std::log(515.0), 1e-5);
  EXPECT_EQ(logits[0][4].item<double>(), 0);
  if (place.dtype != at::kDouble) {  // the reference adds the largest to the logarithm, which is lost beside it
    EXPECT_NEAR(output.losses[1].item<double>(), std::log(1031.0), 1e-5);
  }
  EXPECT_FALSE(output.losses[2].isfinite().item<bool>());
}

TEST_P(CrossEntropy, ARowWithoutATargetCountsForNothing) {
  const auto place = GetParam();
  for (const bool is_reference : {false, true}) {
    auto logits = uniform({4, 67}, 1).to(place.device, place.dtype), alone = logits.clone();
    logits[1] = std::numeric_limits<double>::quiet_NaN();
    auto output = output_for(logits), want = output_for(alone);
    const auto targets = at::tensor({4, kNoTarget, 1, kNoTarget}, at::kInt).to(place.device);
    const auto run = is_reference ? cross_entropy_in_place_reference : cross_entropy_in_place;
    run(logits, targets, {}, per(3, place.device), output);
    run(alone, targets.clamp_min(0), {}, per(3, place.device), want);
    for (const int64_t row : {1, 3}) {
      EXPECT_EQ(output.losses[row].item<double>(), 0) << row;
      EXPECT_FALSE(output.correct[row].item<bool>());
      EXPECT_TRUE(logits[row].eq(0).all().item<bool>()) << row;
    }
    for (const int64_t row : {0, 2}) {
      EXPECT_TRUE(at::equal(logits[row], alone[row]));
      EXPECT_TRUE(at::equal(output.losses[row], want.losses[row]));
    }
  }
}

TEST_P(CrossEntropy, WorksWithoutOptionalOutputs) {
  const auto place = GetParam();
  auto logits = uniform({3, 33}, 1).to(place.device, place.dtype), other = logits.clone();
  auto full = output_for(logits);
  CrossEntropyOutput losses_only{at::empty_like(full.losses), {}, {}};
  const auto targets = targets_for(3, 33).to(place.device);
  cross_entropy_in_place(logits, targets, {}, per(1, place.device), full);
  cross_entropy_in_place(other, targets, {}, per(1, place.device), losses_only);
  EXPECT_TRUE(at::equal(full.losses, losses_only.losses));
  EXPECT_TRUE(at::equal(logits, other));
}

TEST_P(CrossEntropy, AddsLossesToASum) {
  const auto place = GetParam();
  if (place.dtype == at::kBFloat16) GTEST_SKIP() << "losses of bf16 logits are fp32";
  for (const int64_t M : {0, 1, 3001}) {
    const auto losses = uniform({M}, 1).to(place.device, place.dtype);
    auto sum = at::full({}, 1e4, losses.options().dtype(at::kDouble)), reference = sum.clone();
    add_losses(losses, {}, sum);
    add_losses_reference(losses, {}, reference);
    EXPECT_NEAR(sum.item<double>(), 1e4 + f64(losses).sum().item<double>(), 1e-8) << M;
    EXPECT_NEAR(reference.item<double>(), sum.item<double>(), 1e-8);
    if (place.device == at::kCPU && !place.is_cuda_on_cpu) {
      EXPECT_EQ(sum.item<double>(), reference.item<double>());
    }
  }
  for (const int64_t M : {1, 3001}) {
    const auto losses = uniform({M}, 1).to(place.device, place.dtype);
    const auto weights = uniform({M}, 2).to(place.device), ones = at::ones_like(weights);
    auto sum = at::zeros({}, losses.options().dtype(at::kDouble)), reference = sum.clone(), plain = sum.clone();
    auto of_ones = sum.clone();
    add_losses(losses, weights, sum);
    add_losses_reference(losses, weights, reference);
    EXPECT_NEAR(sum.item<double>(), (f64(losses) * f64(weights)).sum().item<double>(), 1e-10) << M;
    EXPECT_NEAR(reference.item<double>(), sum.item<double>(), 1e-10);
    add_losses(losses, {}, plain);
    add_losses(losses, ones, of_ones);
    EXPECT_EQ(plain.item<double>(), of_ones.item<double>());
  }
  auto fp32 = at::zeros({});
  EXPECT_THROW(add_losses(at::ones({3}), {}, fp32), ShapeError);
}

TEST(CrossEntropy, RefusesTargetsAndWeightsOfAnotherDtype) {
  auto logits = at::ones({2, 4});
  auto output = output_for(logits);
  EXPECT_THROW(cross_entropy_in_place(logits, at::zeros({2}, at::kLong), {}, per(1), output), ShapeError);
  const auto targets = at::zeros({2}, at::kInt);
  EXPECT_THROW(cross_entropy_in_place(logits, targets, at::ones({3}), per(1), output), ShapeError);
  EXPECT_THROW(cross_entropy_in_place(logits, targets, at::ones({2}, at::kDouble), per(1), output), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
