#include "lora_train/optim/adamw.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "lora_train/optim/optimizer.h"
#include "optim_goldens.h"
#include "support/kernel_test.h"

namespace lora_train::optim {
namespace {

using namespace testing_support;

struct Buffers {
  at::Tensor params, exp_avg, exp_avg_sq;

  Buffers to(const at::TensorOptions& options) const {
    return {params.to(options, false, true), exp_avg.to(options, false, true), exp_avg_sq.to(options, false, true)};
  }
};

bool equal(const Buffers& a, const Buffers& b) {
  return at::equal(a.params, b.params) && at::equal(a.exp_avg, b.exp_avg) && at::equal(a.exp_avg_sq, b.exp_avg_sq);
}

Buffers uniform_buffers(int64_t n) { return {uniform({n}, 1), uniform({n}, 2), uniform({n}, 3).square()}; }

using Blocks = std::vector<kernels::ParameterBlock>;
using StepFunction = void (*)(at::Tensor&, const at::Tensor&, at::Tensor&, at::Tensor&, const AdamWOptions&,
                              std::span<const kernels::ParameterBlock>, const at::Tensor&);

/// The first with weight decay, the rest without, at another rate.
Blocks two_blocks(int64_t n, int64_t first) { return {{0, first}, {first, n - first, 2.5, false}}; }

void expect_golden_trajectory(StepFunction step_function, at::Device device, double limit) {
  ASSERT_EQ(kAdamWGoldens.size(), 3u);
  for (const auto& golden : kAdamWGoldens) {
    Buffers b = Buffers{at::tensor(golden.start, at::kFloat), at::zeros({7}), at::zeros({7})}.to(device);
    const AdamWOptions options{0.9, golden.beta2, golden.epsilon, golden.weight_decay};
    for (std::size_t i = 0; i < golden.grads.size(); ++i) {
      const auto grads = at::tensor(golden.grads[i], at::kFloat).to(device), before = grads.clone();
      const auto scalars = scalars_for(static_cast<int64_t>(i) + 1, golden.learning_rate, options, golden.grad_scale);
      step_function(b.params, grads, b.exp_avg, b.exp_avg_sq, options, golden.blocks, scalars.to(device));
      EXPECT_CLOSE(b.params, at::tensor(golden.params[i], at::kDouble), limit) << "step " << i + 1;
      EXPECT_TRUE(at::equal(grads, before));
    }
    EXPECT_CLOSE(b.exp_avg, at::tensor(golden.exp_avg, at::kDouble), limit);
    EXPECT_CLOSE(b.exp_avg_sq, at::tensor(golden.exp_avg_sq, at::kDouble), limit);
  }
}

class AdamW : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(EveryPlace, AdamW,
                         ::testing::Values(Place{at::kCPU, at::kFloat}, Place{at::kCPU, at::kDouble},
                                           Place{at::kCUDA, at::kFloat}, Place{at::kCPU, at::kFloat, true}),
                         place_name);

const AdamWOptions kOptions{0.9, 0.98, 1e-8, 0.05};

TEST_P(AdamW, FollowsThePyTorchTrajectory) { expect_golden_trajectory(adamw_step, place.device, 1.2e-7); }

TEST(AdamWReference, FollowsThePyTorchTrajectory) { expect_golden_trajectory(adamw_step_reference, at::kCPU, 1.2e-7); }

TEST_P(AdamW, MatchesTheReferenceAtOddSizes) {
  const at::TensorOptions options = place.options();
  // Of the last, blocks of a GPU take more than all their threads do at once.
  for (const int64_t n : {1, 3, 17, 840003}) {
    const auto grads = uniform({n}, 4);
    Buffers want = uniform_buffers(n).to(at::kDouble), got = want.to(options);
    auto scalars = scalars_for(3, 1e-2, kOptions, 0.5);
    adamw_step_reference(want.params, f64(grads), want.exp_avg, want.exp_avg_sq, kOptions, two_blocks(n, n / 3),
                         scalars);
    adamw_step(got.params, grads.to(options), got.exp_avg, got.exp_avg_sq, kOptions, two_blocks(n, n / 3),
               scalars.to(options.device()));
    EXPECT_CLOSE(got.params, want.params, 1e-7);
    EXPECT_CLOSE(got.exp_avg, want.exp_avg, 1e-7);
    EXPECT_CLOSE(got.exp_avg_sq, want.exp_avg_sq, 1e-7);
  }
}

// Buffers that begin between 16 bytes too: they go element by element.
TEST_P(AdamW, HasTheBitsOfTheCpuEverywhere) {
  if (place.dtype != at::kFloat) GTEST_SKIP() << "fp64 has the reference only";
  for (const int64_t first : {0, 1}) {
    const Buffers all = uniform_buffers(10001);
    const auto grads = uniform({10001}, 4).to(place.device), scalars = scalars_for(3, 1e-2, kOptions, 0.7);
    const auto cut = [&](const Buffers& b) {
      return Buffers{b.params.slice(0, first), b.exp_avg.slice(0, first), b.exp_avg_sq.slice(0, first)};
    };
    Buffers got = cut(all.to(place.device)), want = cut(all.to(at::kCPU));
    adamw_step(got.params, grads.slice(0, first), got.exp_avg, got.exp_avg_sq, kOptions, two_blocks(10001 - first, 777),
               scalars.to(place.device));
    if (place.is_cuda_on_cpu) kernels::use_native_kernels({});
    adamw_step(want.params, grads.cpu().slice(0, first), want.exp_avg, want.exp_avg_sq, kOptions,
               two_blocks(10001 - first, 777), scalars);
    if (place.is_cuda_on_cpu) kernels::use_native_kernels({&kernels::linked_native_kernels(), nullptr, true});
    EXPECT_TRUE(equal(got.to(at::kCPU), want)) << "from element " << first;
  }
}

TEST_P(AdamW, WritesNothingOnceSomethingWasNotFinite) {
  const at::TensorOptions options = place.options();
  for (const StepFunction step_function : {adamw_step, adamw_step_reference}) {
    const Buffers before = uniform_buffers(1003).to(options);
    Buffers b = before.to(options);
    auto grads = uniform({1003}, 4).to(options), scalars = scalars_for(3, 1e-2, kOptions, 1).to(options.device());
    const auto step = [&] {
      step_function(b.params, grads, b.exp_avg, b.exp_avg_sq, kOptions, two_blocks(1003, 100), scalars);
    };
    grads[500] = std::numeric_limits<double>::infinity();
    measure_gradients(grads, 1, scalars);
    step();
    EXPECT_TRUE(equal(b, before));
    grads[500] = 0;
    measure_gradients(grads, 1, scalars);
    step();
    EXPECT_TRUE(equal(b, before)) << "a later step must not go on";
    scalars[kNonFinite] = 0;
    step();
    EXPECT_FALSE(at::equal(b.params, before.params));
    EXPECT_TRUE(b.params.isfinite().all().item<bool>());
  }
}

TEST(AdamWOnCpu, DoesNotDependOnTheNumberOfThreads) {
  const auto run = [](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    Buffers b = uniform_buffers(100003);
    adamw_step(b.params, uniform({100003}, 4), b.exp_avg, b.exp_avg_sq, kOptions, two_blocks(100003, 777),
               scalars_for(3, 1e-2, kOptions, 0.5));
    at::set_num_threads(before);
    return b.params;
  };
  EXPECT_TRUE(at::equal(run(1), run(3)));
}

TEST_P(AdamW, StandsEmptyBuffersAndDecaysWhatBlocksSay) {
  const at::TensorOptions options = place.options();
  auto none = at::empty({0}, options);
  const AdamWOptions decaying{0.9, 0.999, 1e-8, 0.5};
  const auto scalars = scalars_for(1, 0.1, decaying, 1).to(options.device());
  adamw_step(none, none, none, none, decaying, {}, scalars);
  auto params = at::ones({6}, options), zeros = at::zeros({6}, options), m = zeros.clone(), v = zeros.clone();
  adamw_step(params, zeros, m, v, decaying, Blocks{{0, 2}, {2, 1, 1.0, false}, {3, 3, 4.0}}, scalars);
  EXPECT_TRUE(
      at::equal(params.cpu(), at::tensor({0.95, 0.95, 1.0, 0.8, 0.8, 0.8}, at::kDouble).to(params.scalar_type())));
}

TEST(AdamWOnCpu, RefusesWhatDoesNotFitTogether) {
  auto p = at::ones({4}), m = at::zeros({4}), v = at::zeros({3});
  const auto scalars = scalars_for(1, 0.1, kOptions, 1);
  const Blocks all = {{0, 4}};
  EXPECT_THROW(adamw_step(p, p, m, v, kOptions, all, scalars), ShapeError);
  for (const Blocks& wrong :
       {Blocks{}, Blocks{{0, 5}}, Blocks{{1, 3}}, Blocks{{0, 1}, {2, 2}}, Blocks{{0, 3}, {2, 1}, {3, 1}}}) {
    EXPECT_THROW(adamw_step(p, p, m, m, kOptions, wrong, scalars), ShapeError);
  }
  EXPECT_THROW(adamw_step(p, p, m, m, kOptions, all, scalars.to(at::kFloat)), ShapeError);
  EXPECT_THROW(adamw_step(p, p, m, m, kOptions, all, scalars.slice(0, 1)), ShapeError);
  EXPECT_THROW(first_scalars(0, 1, 0.1, kOptions), ShapeError);
}

TEST(Optimizers, AdamWKeepsTwoMoments) {
  const Optimizer& adamw = optimizer_for(OptimizerKind::kAdamwTorch);
  EXPECT_EQ(&adamw, &optimizer_for(OptimizerKind::kAdamwTorchFused));
  const std::vector<kernels::ParameterBlock> blocks = {{0, 600}, {600, 400}};
  EXPECT_EQ(adamw.state_bytes(blocks), 8000);
  const OptimizerState state(adamw, blocks, at::kCPU);
  EXPECT_EQ(state.bytes(), 8000);
  ASSERT_EQ(state.tensors.size(), 2u);
  EXPECT_EQ(state.tensors[1].abs().sum().item<float>(), 0);
}

TEST(Optimizers, RowsStepAsTheirFunctions) {
  const std::vector<kernels::ParameterBlock> blocks = {{0, 4096}, {4096, 30, 4.0, false}};
  const AdamWOptions options{0.9, 0.99, 1e-8, 0.1};
  for (const auto kind : {OptimizerKind::kAdamwTorch, OptimizerKind::kAdamw8bit}) {
    const Optimizer& row = optimizer_for(kind);
    OptimizerState state(row, blocks, at::kCPU), other(row, blocks, at::kCPU);
    EXPECT_EQ(state.bytes(), row.state_bytes(blocks));
    const auto grads = uniform({4126}, 2);
    auto got = uniform({4126}, 1), want = got.clone(), scalars = at::ones({kNumStepScalars}, at::kDouble);
    scalars[kNonFinite] = 0;
    auto& t = other.tensors;
    state.update(got, grads, options, blocks, scalars);
    if (kind == OptimizerKind::kAdamwTorch) {
      adamw_step(want, grads, t[0], t[1], options, blocks, scalars);
    } else {
      adamw_8bit_step(want, grads, {t[0], t[1], t[2], t[3], t[4], t[5], t[6]}, options, blocks, scalars);
    }
    EXPECT_TRUE(at::equal(got, want));
    for (std::size_t i = 0; i < t.size(); ++i) EXPECT_TRUE(at::equal(state.tensors[i], t[i])) << i;
  }
}

TEST(Optimizers, AdamW8bitRoundsItsBetasToFp32) {
  OptimizerSection section;
  section.kind = OptimizerKind::kAdamw8bit;
  EXPECT_EQ(adamw_options(section).beta1, static_cast<double>(0.9F));
  EXPECT_EQ(adamw_options(section).beta2, static_cast<double>(0.999F));
  section.kind = OptimizerKind::kAdamwTorch;
  EXPECT_EQ(adamw_options(section).beta1, 0.9);
  EXPECT_EQ(adamw_options(section).beta2, 0.999);
}

}  // namespace
}  // namespace lora_train::optim
