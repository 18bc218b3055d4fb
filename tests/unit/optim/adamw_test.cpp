#include "lora_train/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "lora_train/base/error.h"
#include "optim_goldens.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::optim {
namespace {

using namespace testing_support;

struct Buffers {
  at::Tensor params, exp_avg, exp_avg_sq;
};

using StepFunction = void (*)(at::Tensor&, const at::Tensor&, at::Tensor&, at::Tensor&, int64_t, double,
                              const AdamWOptions&, int64_t, double);

void expect_golden_trajectory(StepFunction step_function, double limit) {
  ASSERT_EQ(kAdamWGoldens.size(), 2u);
  for (const auto& golden : kAdamWGoldens) {
    Buffers b{at::tensor(golden.start, at::kFloat), at::zeros({7}), at::zeros({7})};
    const AdamWOptions options{0.9, golden.beta2, golden.epsilon, golden.weight_decay};
    for (std::size_t i = 0; i < golden.grads.size(); ++i) {
      const auto grads = at::tensor(golden.grads[i], at::kFloat), before = grads.clone();
      step_function(b.params, grads, b.exp_avg, b.exp_avg_sq, static_cast<int64_t>(i) + 1, golden.learning_rate, options,
                    golden.num_decayed, golden.grad_scale);
      EXPECT_CLOSE(b.params, at::tensor(golden.params[i], at::kDouble), limit) << "step " << i + 1;
      EXPECT_TRUE(at::equal(grads, before));
    }
    EXPECT_CLOSE(b.exp_avg, at::tensor(golden.exp_avg, at::kDouble), limit);
    EXPECT_CLOSE(b.exp_avg_sq, at::tensor(golden.exp_avg_sq, at::kDouble), limit);
  }
}

TEST(AdamW, FollowsThePyTorchTrajectory) { expect_golden_trajectory(adamw_step, 1.2e-7); }

TEST(AdamWReference, FollowsThePyTorchTrajectory) { expect_golden_trajectory(adamw_step_reference, 1.2e-7); }

TEST(AdamW, MatchesTheReferenceAtOddSizes) {
  const AdamWOptions options{0.9, 0.98, 1e-8, 0.05};
  for (const int64_t n : {1, 17, 100003}) {
    Buffers got{uniform({n}, 1), uniform({n}, 2), uniform({n}, 3).square()};
    Buffers want{f64(got.params), f64(got.exp_avg), f64(got.exp_avg_sq)};
    const auto grads = uniform({n}, 4);
    adamw_step(got.params, grads, got.exp_avg, got.exp_avg_sq, 3, 1e-2, options, n / 3, 0.5);
    adamw_step_reference(want.params, f64(grads), want.exp_avg, want.exp_avg_sq, 3, 1e-2, options, n / 3, 0.5);
    EXPECT_CLOSE(got.params, want.params, 1e-7);
    EXPECT_CLOSE(got.exp_avg, want.exp_avg, 1e-7);
    EXPECT_CLOSE(got.exp_avg_sq, want.exp_avg_sq, 1e-7);
  }
}

TEST(AdamW, DoesNotDependOnTheNumberOfThreads) {
  const auto run = [](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    Buffers b{uniform({100003}, 1), uniform({100003}, 2), uniform({100003}, 3).square()};
    adamw_step(b.params, uniform({100003}, 4), b.exp_avg, b.exp_avg_sq, 3, 1e-2, {0.9, 0.98, 1e-8, 0.05}, 777, 0.5);
    at::set_num_threads(before);
    return b.params;
  };
  EXPECT_TRUE(at::equal(run(1), run(3)));
}

TEST(AdamW, StandsEmptyBuffersAndDecaysOnlyTheFirst) {
  auto none = at::empty({0});
  adamw_step(none, none, none, none, 1, 1e-3, {}, 0, 1);
  Buffers b{at::ones({6}), at::zeros({6}), at::zeros({6})};
  adamw_step(b.params, at::zeros({6}), b.exp_avg, b.exp_avg_sq, 1, 0.1, {0.9, 0.999, 1e-8, 0.5}, 2, 1);
  EXPECT_TRUE(at::equal(b.params, at::tensor({0.95F, 0.95F, 1.0F, 1.0F, 1.0F, 1.0F}, at::kFloat)));
}

TEST(AdamW, RefusesBuffersOfDifferentLengths) {
  auto p = at::ones({4}), m = at::zeros({4}), v = at::zeros({3});
  EXPECT_THROW(adamw_step(p, p, m, v, 1, 1e-3, {}, 0, 1), ShapeError);
}

}  // namespace
}  // namespace lora_train::optim
