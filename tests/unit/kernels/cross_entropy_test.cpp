#include "lora_train/kernels/cross_entropy/cross_entropy.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <memory>

#include "support/kernel_test.h"

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

/// Every element against its own size: beside a target's gradient all others are small.
bool are_elements_close(const at::Tensor& got, const at::Tensor& want, at::ScalarType dtype) {
  const double limit = dtype == at::kBFloat16 ? 4e-3 : dtype == at::kFloat ? 5e-6 : 1e-10;
  return at::allclose(f64(got), want, limit, 0);
}

// In fp64 this is the reference.
TEST_P(CrossEntropy, MatchesAtensAutogradInFp64) {
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  const double fp32_limit = std::min(kTightFloatTolerance, tolerance(place.dtype));
  for (const auto& [M, V] : Sizes{{1, 2}, {3, 7}, {5, 1031}, {2, 50257}, {33, 257}}) {
    for (const bool is_weighted : {false, true}) {
      SCOPED_TRACE(::testing::Message() << M << "x" << V << " " << is_weighted);
      const auto start = (uniform({M, V}, 1) * 12).to(place.options()), exact = f64(start).requires_grad_();
      const auto targets = targets_for(M, V), weights = uniform({M}, 2).add_(0.5).mul_(3);
      weights[M - 1] = 0;
      const auto losses = at::cross_entropy_loss(exact, targets.to(at::kLong), {}, at::Reduction::None);
      (is_weighted ? losses * weights : losses).sum().div(8).backward();
      const auto [confidence, index] = exact.detach().softmax(1).max(1);
      auto logits = start.clone();
      auto output = output_for(logits);
      cross_entropy_in_place(logits, targets.to(place.device), {}, {}, output);
      EXPECT_TRUE(at::equal(logits, start)) << "logits must stay without a gradient";
      EXPECT_CLOSE(output.losses, losses.detach(), fp32_limit);
      cross_entropy_in_place(logits, targets.to(place.device), is_weighted ? weights.to(place.device) : at::Tensor(),
                             per(8, place.device), output);
      EXPECT_CLOSE(output.losses, losses.detach(), fp32_limit) << "no weight in them";
      EXPECT_CLOSE(output.confidence, confidence, kTightFloatTolerance);
      EXPECT_TRUE(at::equal(output.correct.cpu(), index == targets));
      if (is_weighted && M == 1) continue;  // its gradient is zero
      EXPECT_CLOSE(logits, exact.grad(), place.dtype == at::kFloat ? 2 * kTightFloatTolerance : tolerance(place.dtype));
      EXPECT_TRUE(are_elements_close(logits, exact.grad(), place.dtype));
    }
  }
}

TEST_P(CrossEntropy, WeightsOfOneAndOptionalOutputsChangeNoBit) {
  const auto start = (uniform({9, 1031}, 1) * 12).to(place.options());
  const auto targets = targets_for(9, 1031).to(place.device), ones = at::ones({9}, start.options().dtype(at::kFloat));
  for (const auto run : {cross_entropy_in_place, cross_entropy_in_place_reference}) {
    auto plain = start.clone(), weighted = start.clone();
    CrossEntropyOutput plain_output = output_for(plain), losses_only{at::empty_like(plain_output.losses), {}, {}};
    run(plain, targets, {}, per(7, place.device), plain_output);
    run(weighted, targets, ones, per(7, place.device), losses_only);
    EXPECT_TRUE(at::equal(plain, weighted));
    EXPECT_TRUE(at::equal(plain_output.losses, losses_only.losses));
  }
}

TEST(CrossEntropyOnCpu, IsTheSameWithAndWithoutAvx512) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto start = (uniform({5, 4099}, 1) * 12).to(dtype);  // tiles of 2048
    std::vector<at::Tensor> gradients, losses;
    for (const bool is_older : {false, true}) {
      const auto older_cpu = is_older ? std::make_unique<BelowAvx512>() : nullptr;
      auto logits = start.clone();
      auto output = output_for(logits);
      cross_entropy_in_place(logits, targets_for(5, 4099), {}, per(5), output);
      gradients.push_back(logits);
      losses.push_back(output.losses);
    }
    EXPECT_CLOSE(losses[0], losses[1], kTightFloatTolerance);
    EXPECT_CLOSE(gradients[0], gradients[1], dtype == at::kFloat ? kTightFloatTolerance : tolerance(dtype));
  }
}

TEST_P(CrossEntropy, CountsTheFirstOfEqualLogitsAsCorrect) {
  auto logits = at::zeros({4, 67}, place.options());
  logits.slice(1, 40, 42).fill_(3);  // 40 and 41 are equal; the first of them wins
  auto output = output_for(logits);
  cross_entropy_in_place(logits, at::tensor({40, 41, 39, 66}, at::kInt).to(place.device), {}, {}, output);
  EXPECT_TRUE(at::equal(output.correct.cpu(), at::tensor({1, 0, 0, 0}, at::kInt).to(at::kBool)));
  logits.zero_();
  cross_entropy_in_place(logits, at::tensor({0, 1, 39, 66}, at::kInt).to(place.device), {}, {}, output);
  EXPECT_TRUE(at::equal(output.correct.cpu(), at::tensor({1, 0, 0, 0}, at::kInt).to(at::kBool)));
}

TEST_P(CrossEntropy, StandsLargeAndMaskedLogitsAndCarriesWhatIsNotFinite) {
  auto logits = at::zeros({6, 1031}, place.options());
  logits[0][5] = 1e4;
  logits[1][4] = -1e4;
  logits[2][600] = std::nan("");
  logits[3].slice(0, 0, 1031, 2).fill_(-HUGE_VAL);
  logits[4].fill_(-1e30);
  logits[5][600] = HUGE_VAL;
  auto output = output_for(logits);
  const auto targets = at::tensor({4, 4, 1, 5, 5, 5}, at::kInt).to(place.device);
  cross_entropy_in_place(logits, targets, {}, per(8, place.device), output);
  const double big = at::scalar_tensor(1e4, at::kDouble).to(place.dtype).item<double>();
  const auto loss = [&](int64_t row) { return output.losses[row].item<double>(); };
  EXPECT_NEAR(loss(0), big, 1e-3);
  EXPECT_NEAR(loss(1), big + std::log(1030.0), 1e-2);
  EXPECT_TRUE(std::isnan(loss(2)));
  EXPECT_NEAR(loss(3), std::log(515.0), 1e-5);
  if (place.dtype != at::kDouble) {  // the reference adds the largest to the logarithm, which is lost beside it
    EXPECT_NEAR(loss(4), std::log(1031.0), 1e-5);
  }
  EXPECT_FALSE(std::isfinite(loss(5)));
  EXPECT_TRUE(logits.slice(0, 0, 2).isfinite().all().item<bool>());
  EXPECT_EQ(logits[3][4].item<double>(), 0);
}

TEST_P(CrossEntropy, ARowWithoutATargetCountsForNothing) {
  for (const bool is_reference : {false, true}) {
    auto logits = uniform({4, 67}, 1).to(place.options()), alone = logits.clone();
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

TEST_P(CrossEntropy, AddsLossesToASum) {
  if (place.dtype == at::kBFloat16) GTEST_SKIP() << "losses of bf16 logits are fp32";
  for (const int64_t M : {0, 1, 3001}) {
    const auto losses = uniform({M}, 1).to(place.options()), ones = at::ones({M}, at::device(place.device));
    for (const auto& weights : {at::Tensor(), uniform({M}, 2).to(place.device), ones}) {
      auto sum = at::full({}, 1e4, losses.options().dtype(at::kDouble)), reference = sum.clone(), plain = sum.clone();
      add_losses(losses, weights, sum);
      add_losses_reference(losses, weights, reference);
      add_losses(losses, {}, plain);
      const auto want = weights.defined() ? f64(losses) * f64(weights) : f64(losses);
      EXPECT_NEAR(sum.item<double>(), 1e4 + want.sum().item<double>(), 1e-8) << M;
      EXPECT_NEAR(reference.item<double>(), sum.item<double>(), 1e-8);
      if (place.device == at::kCPU && !place.is_cuda_on_cpu && !weights.defined()) {
        EXPECT_EQ(sum.item<double>(), reference.item<double>());
      }
      EXPECT_TRUE(!weights.is_same(ones) || at::equal(sum, plain));
    }
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

/// Row 1 has two tokens of the teacher, row 2 none; row 4 has no target.
struct SoftCase {
  static constexpr int64_t M = 5, V = 33, K = 4;
  at::Tensor logits = uniform({M, V}, 1, at::kDouble) * 8;
  at::Tensor targets = at::tensor({3, 32, 0, 7, kNoTarget}, at::kInt);
  at::Tensor weights = at::tensor({1.0F, 0.5F, 2.0F, 3.0F, 1.0F});
  SoftTargets soft{
      at::tensor({3, 1, 2, 30, 5, 32, -1, -1, -1, -1, -1, -1, 8, 9, 10, 11, 1, 2, 3, 4}, at::kInt).view({M, K}),
      uniform({M, K}, 2) * 3 - 3};
  at::Tensor denominator = at::scalar_tensor(4, at::kDouble);

  at::Tensor expected(const at::Tensor& z, const SoftTargetOptions& options) const {
    std::vector<at::Tensor> losses;
    for (int64_t m = 0; m < M; ++m) {
      const int64_t target = targets[m].item<int>(), k = m == 1 ? 2 : m == 2 ? 0 : K;
      if (target < 0) {
        losses.push_back(at::zeros({}, at::kDouble));
        continue;
      }
      const at::Tensor nll = -z[m].log_softmax(0)[target];
      const at::Tensor ids = soft.ids[m].narrow(0, 0, k).to(at::kLong);
      const at::Tensor p = (soft.log_probs[m].narrow(0, 0, k).to(at::kDouble) / options.temperature).softmax(0);
      const at::Tensor log_q = (z[m] / options.temperature).log_softmax(0).index_select(0, ids);
      const double share = k == 0 ? 0 : options.share, square = options.temperature * options.temperature;
      losses.push_back((1 - share) * nll + share * square * (p * (p.log() - log_q)).sum());
    }
    return at::stack(losses);
  }
};

TEST(SoftCrossEntropy, EqualsTheDefinitionAndItsAutograd) {
  for (const SoftTargetOptions options : {SoftTargetOptions{1, 1}, {1, 0.25}, {2.5, 0.75}, {0.5, 1}, {3, 0}}) {
    SoftCase c;
    const at::Tensor z = c.logits.detach().clone().requires_grad_();
    const at::Tensor want = c.expected(z, options);
    const auto grads = torch::autograd::grad({(want * c.weights).sum() / 4}, {z});
    at::Tensor losses = at::empty({SoftCase::M}, at::kDouble), in_place = c.logits.clone();
    soft_cross_entropy_in_place(in_place, c.targets, c.weights, c.soft, options, {}, losses);
    EXPECT_TRUE(at::equal(in_place, c.logits));
    soft_cross_entropy_in_place(in_place, c.targets, c.weights, c.soft, options, c.denominator, losses);
    EXPECT_CLOSE(losses, want.detach(), 1e-12);
    EXPECT_CLOSE(in_place, grads[0], 1e-12);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor low = c.logits.to(dtype), loss = at::empty({SoftCase::M}, at::kFloat);
      SoftCase rounded;
      rounded.logits = low.to(at::kDouble);
      soft_cross_entropy_in_place(low, c.targets, c.weights, c.soft, options, c.denominator, loss);
      EXPECT_CLOSE(loss, rounded.expected(rounded.logits, options), 1e-5);
      EXPECT_CLOSE(low, grads[0], dtype == at::kFloat ? 1e-5 : 2e-2);
    }
  }
}

TEST(SoftCrossEntropy, WithoutTheTeacherItIsCrossEntropy) {
  SoftCase c;
  c.soft.ids.fill_(-1);
  at::Tensor soft_losses = at::empty({SoftCase::M}, at::kDouble), losses = at::empty({SoftCase::M}, at::kDouble);
  at::Tensor soft = c.logits.clone(), plain = c.logits.clone();
  soft_cross_entropy_in_place(soft, c.targets, c.weights, c.soft, {2, 1}, c.denominator, soft_losses);
  CrossEntropyOutput output{losses, {}, {}};
  cross_entropy_in_place_reference(plain, c.targets, c.weights, c.denominator, output);
  EXPECT_CLOSE(soft_losses, losses, 1e-13);
  EXPECT_CLOSE(soft, plain, 1e-13);
}

TEST(SoftCrossEntropy, RefusesOtherShapes) {
  SoftCase c;
  at::Tensor losses = at::empty({SoftCase::M}, at::kDouble);
  const SoftTargets other{c.soft.ids.narrow(0, 0, 3), c.soft.log_probs};
  EXPECT_THROW(soft_cross_entropy_in_place(c.logits, c.targets, {}, other, {}, {}, losses), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
