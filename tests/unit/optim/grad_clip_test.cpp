#include "lora_train/optim/grad_clip.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lora_train/base/error.h"
#include "optim_goldens.h"
#include "support/tensors.h"

namespace lora_train::optim {
namespace {

using namespace testing_support;

TEST(GradClip, MatchesClipGradNormOfPyTorch) {
  ASSERT_FALSE(kClipGoldens.empty());
  for (const auto& golden : kClipGoldens) {
    const auto grads = at::tensor(golden.grads, at::kFloat);
    const double norm = grad_norm(grads), factor = clip_factor(norm, golden.max_norm);
    EXPECT_NEAR(norm, golden.norm, 1e-6);
    for (std::size_t i = 0; i < golden.grads.size(); ++i) {
      EXPECT_NEAR(golden.grads[i] * factor, golden.clipped[i], 1e-6);
    }
  }
}

TEST(GradClip, ZeroTurnsItOff) {
  EXPECT_EQ(clip_factor(1e9, 0), 1.0);
  EXPECT_LT(clip_factor(1e9, 1), 1e-8);
}

TEST(GradClip, SumsInFp64OverManyElements) {
  for (const int64_t n : {0, 1, 17, 65536, 65537, 1000003}) {
    const auto grads = uniform({n}, 1);
    const double expected = grads.to(at::kDouble).square().sum().sqrt().item<double>();
    EXPECT_NEAR(grad_norm(grads), expected, 1e-12 * expected) << n;
  }
  const auto far_apart = at::tensor({1.0F, 1e-6F, 1e18F}, at::kFloat);
  EXPECT_NEAR(grad_norm(far_apart) / 1e18, 1, 1e-7);
}

TEST(GradClip, DoesNotDependOnTheNumberOfThreads) {
  const auto grads = uniform({1000003}, 1);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = grad_norm(grads);
  at::set_num_threads(4);
  EXPECT_EQ(grad_norm(grads), one);
  at::set_num_threads(before);
}

TEST(GradClip, NonFiniteInNonFiniteOut) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto grads = at::ones({70000});
    grads[69999] = bad;
    EXPECT_FALSE(std::isfinite(grad_norm(grads)));
  }
}

TEST(GradClip, RefusesAStridedBuffer) {
  EXPECT_THROW(grad_norm(at::ones({4, 2}).select(1, 0)), ShapeError);
}

}  // namespace
}  // namespace lora_train::optim
