#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "lora_train/optim/adamw.h"
#include "optim_goldens.h"
#include "support/kernel_test.h"

namespace lora_train::optim {
namespace {

using namespace testing_support;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Measured {
  double norm, clip_factor;
  bool is_non_finite;
};

Measured measure(const at::Tensor& grads, double max_norm, double loss_sum = 0, bool is_reference = false) {
  auto scalars = at::zeros({kNumStepScalars}, grads.options().dtype(at::kDouble));
  scalars[kLossSum] = loss_sum;
  is_reference ? measure_gradients_reference(grads, max_norm, scalars) : measure_gradients(grads, max_norm, scalars);
  const auto number = [&](int64_t which) { return scalars[which].item<double>(); };
  const bool is_kept = number(kLossSum) == loss_sum || std::isnan(loss_sum);
  EXPECT_TRUE(is_kept && number(kLearningRate) == 0 && number(kBeta2Correction) == 0);
  return {number(kGradNorm), number(kClipFactor), number(kNonFinite) == 1};
}

class GradClip : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(EveryPlace, GradClip,
                         ::testing::Values(Place{at::kCPU, at::kFloat}, Place{at::kCPU, at::kDouble},
                                           Place{at::kCUDA, at::kFloat}, Place{at::kCPU, at::kFloat, true}),
                         place_name);

TEST_P(GradClip, MatchesClipGradNormOfPyTorch) {
  ASSERT_FALSE(kClipGoldens.empty());
  for (const auto& golden : kClipGoldens) {
    for (const bool is_reference : {false, true}) {
      const auto [norm, factor, is_non_finite] =
          measure(at::tensor(golden.grads, at::kFloat).to(place.options()), golden.max_norm, 0, is_reference);
      EXPECT_NEAR(norm, golden.norm, 1e-6);
      EXPECT_FALSE(is_non_finite);
      for (std::size_t i = 0; i < golden.grads.size(); ++i) {
        EXPECT_NEAR(golden.grads[i] * factor, golden.clipped[i], 1e-6);
      }
    }
  }
}

TEST_P(GradClip, ZeroTurnsItOff) {
  const auto grads = at::full({9}, 1e9, place.options());
  for (const bool is_reference : {false, true}) {
    EXPECT_EQ(measure(grads, 0, 0, is_reference).clip_factor, 1.0);
    EXPECT_LT(measure(grads, 1, 0, is_reference).clip_factor, 1e-8);
    EXPECT_EQ(measure(grads, 1e12, 0, is_reference).clip_factor, 1.0);
  }
}

TEST_P(GradClip, SumsInFp64OverManyElements) {
  for (const int64_t n : {0, 1, 17, 4096, 4097, 65536, 65537, 1000003}) {
    for (const int64_t first : {0, 1}) {  // aligned to 16 bytes, and not
      const auto grads = uniform({n + first}, 1).to(place.options()).slice(0, first);
      const double expected = grads.cpu().to(at::kDouble).square().sum().sqrt().item<double>();
      EXPECT_NEAR(measure(grads, 1).norm, expected, 1e-12 * expected) << n;
      EXPECT_NEAR(measure(grads, 1, 0, true).norm, expected, 1e-12 * expected) << n;
    }
  }
  const auto far_apart = at::tensor({1.0F, 1e-6F, 1e18F}, at::kFloat).to(place.options());
  EXPECT_NEAR(measure(far_apart, 1).norm / 1e18, 1, 1e-7);
}

TEST(GradClipOnCpu, DoesNotDependOnTheNumberOfThreads) {
  const auto grads = uniform({1000003}, 1);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = measure(grads, 1).norm;
  at::set_num_threads(4);
  EXPECT_EQ(measure(grads, 1).norm, one);
  at::set_num_threads(before);
}

TEST_P(GradClip, NoticesWhatIsNotFinite) {
  const auto grads = at::ones({70000}, place.options());
  auto scalars = at::zeros({kNumStepScalars}, grads.options().dtype(at::kDouble));
  for (const auto measure_with : {measure_gradients, measure_gradients_reference}) {
    scalars[kNonFinite] = 1;
    measure_with(grads, 1, scalars);
    EXPECT_EQ(scalars[kNonFinite].item<double>(), 1) << "stays so";
  }
  for (const bool is_reference : {false, true}) {
    EXPECT_FALSE(measure(grads, 1, 3, is_reference).is_non_finite);
    for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
      EXPECT_TRUE(measure(grads, 1, bad, is_reference).is_non_finite) << "loss " << bad;
      auto spoilt = grads.clone();
      spoilt[69999] = bad;
      const Measured measured = measure(spoilt, 1, 3, is_reference);
      EXPECT_TRUE(measured.is_non_finite && !std::isfinite(measured.norm)) << bad;
    }
  }
}

TEST(GradClipOnCpu, RefusesAStridedBuffer) {
  auto scalars = at::zeros({kNumStepScalars}, at::kDouble), short_scalars = at::zeros({3}, at::kDouble);
  EXPECT_THROW(measure_gradients(at::ones({4, 2}).select(1, 0), 1, scalars), ShapeError);
  EXPECT_THROW(measure_gradients(at::ones({4}), 1, short_scalars), ShapeError);
}

}  // namespace
}  // namespace lora_train::optim
