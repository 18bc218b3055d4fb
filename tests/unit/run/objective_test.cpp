// The gradients of an objective against autograd on the logits, and the same backward pass of the decoder.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "bench/bench_run.h"
#include "lora_train/run/build_run.h"
#include "lora_train/run/train_step.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::run {
namespace {

using testing_support::tolerance;
using testing_support::uniform;

constexpr double kDenominator = 7;

std::unique_ptr<bench::BenchRun> run_with(LossType loss_type) {
  bench::BenchRequest request;
  request.shape = "tiny-qwen2";
  request.num_steps = 1;
  request.num_warm_up = 0;
  request.profile.run.device = Device::kCpu;
  request.profile.model.precision = Precision::kFp32;
  request.profile.data.max_seq_len = 64;
  request.profile.schedule.micro_batch_size = 2;
  request.profile.objective.loss_type = loss_type;
  auto bench = bench::build_bench_run(request);
  bench->run.model.weights->acquire_outer(model::Pass::kForward).head.mul_(10);  // probabilities far apart
  return bench;
}

/// Log p of every token [M, V] in the place of the supervised ones, in fp64, as a function of final_hidden.
at::Tensor log_softmax_of(Run& run, const at::Tensor& final_hidden, const model::Batch& batch) {
  const model::OuterWeights& outer = run.model.weights->acquire_outer(model::Pass::kForward);
  const at::Tensor x = final_hidden.index_select(0, batch.supervised);
  const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, true) + run.files.config.rms_norm_eps) *
                            outer.final_norm.weight.to(at::kDouble);
  return at::mm(normed, outer.head.to(at::kDouble).t()).log_softmax(-1);
}

at::Tensor of_targets(const at::Tensor& log_softmax, const model::Batch& batch) {
  return log_softmax.gather(1, batch.targets.to(at::kLong).unsqueeze(1)).squeeze(1);
}

struct Value {
  double loss_sum;
  at::Tensor grads;
};

Value value_of_objective(Run& run, const model::Batch& batch) {
  StepContext& context = *run.context;
  context.parameters.grads.zero_();
  context.scalars.device()[optim::kLossSum].fill_(100);
  context.scalars.device()[optim::kLossDenominator].fill_(kDenominator);
  objective_for(context.objective.loss_type).enqueue_gradients(context, batch);
  return {context.scalars.device()[optim::kLossSum].item<double>() - 100, context.parameters.grads.clone()};
}

/// The same with the gradient of final_hidden from autograd.
Value value_of_autograd(Run& run, const model::Batch& batch, at::Tensor (*loss_of)(const at::Tensor& log_probs)) {
  StepContext& context = *run.context;
  context.parameters.grads.zero_();
  model::decoder_forward(context.decoder, batch, context.activations);
  const std::int64_t N = batch.num_tokens();
  const at::Tensor hidden =
      context.activations.final_hidden.narrow(0, 0, N).to(at::kDouble).detach().requires_grad_(true);
  at::Tensor losses = loss_of(of_targets(log_softmax_of(run, hidden, batch), batch));
  if (batch.weights.defined()) losses = losses * batch.weights;
  const at::Tensor loss_sum = losses.sum();
  const auto grads = torch::autograd::grad({loss_sum / kDenominator}, {hidden});
  context.activations.d_hidden.narrow(0, 0, N).copy_(grads[0]);
  model::decoder_backward(context.decoder, batch, context.activations);
  return {loss_sum.item<double>(), context.parameters.grads.clone()};
}

struct ObjectiveCase {
  LossType type;
  at::Tensor (*loss_of)(const at::Tensor& log_probs);
  bool has_weights;
};

at::Tensor nll(const at::Tensor& log_probs) { return -log_probs; }
at::Tensor dft(const at::Tensor& log_probs) { return -log_probs.exp().detach() * log_probs; }

class ObjectiveOf : public testing::TestWithParam<ObjectiveCase> {};
INSTANTIATE_TEST_SUITE_P(All, ObjectiveOf,
                         testing::Values(ObjectiveCase{LossType::kNll, nll, false},
                                         ObjectiveCase{LossType::kNll, nll, true},
                                         ObjectiveCase{LossType::kDft, dft, false},
                                         ObjectiveCase{LossType::kDft, dft, true}));

TEST_P(ObjectiveOf, LossAndGradientsEqualAutograd) {
  const auto bench = run_with(GetParam().type);
  run::Run& run = bench->run;
  const data::StepPlan plan = run.plan->step(1);
  model::Batch batch = run.feed->put(*build_in_place(run.data.train, plan)());
  const std::int64_t M = batch.num_trained_tokens();
  ASSERT_GT(M, 1);
  if (GetParam().has_weights) batch.weights = uniform({M}, 3).add_(1.5);
  for (int i = 0; i < 2; ++i) {  // the second pass finds what the first left in the buffers
    const Value want = value_of_autograd(run, batch, GetParam().loss_of), got = value_of_objective(run, batch);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-5 * want.loss_sum);
    EXPECT_CLOSE(got.grads, want.grads, tolerance(at::kFloat));
  }
}

/// Of a made-up teacher: three tokens for every second supervised one.
kernels::SoftTargets teacher_for(std::int64_t M) {
  at::Tensor ids = at::arange(3 * M, at::kInt).remainder(50).view({M, 3}).contiguous();
  ids.slice(0, 1, M, 2).fill_(-1);
  return {ids, uniform({M, 3}, 5) * 4};
}

TEST(Objective, KlEqualsAutograd) {
  const auto bench = run_with(LossType::kKl);
  run::Run& run = bench->run;
  model::Batch batch = run.feed->put(*build_in_place(run.data.train, run.plan->step(1))());
  const std::int64_t M = batch.num_trained_tokens(), N = batch.num_tokens();
  batch.soft = teacher_for(M);
  StepContext& context = *run.context;
  const double a = context.objective.kd_alpha;
  const Value got = value_of_objective(run, batch);
  context.parameters.grads.zero_();
  model::decoder_forward(context.decoder, batch, context.activations);
  const at::Tensor hidden =
      context.activations.final_hidden.narrow(0, 0, N).to(at::kDouble).detach().requires_grad_(true);
  const at::Tensor log_q = log_softmax_of(run, hidden, batch), nll = -of_targets(log_q, batch);
  const at::Tensor log_p = batch.soft.log_probs.to(at::kDouble).log_softmax(1);
  const at::Tensor divergence =
      (log_p.exp() * (log_p - log_q.gather(1, batch.soft.ids.to(at::kLong).clamp_min(0)))).sum(1);
  const at::Tensor has_teacher = batch.soft.ids.select(1, 0) >= 0;
  const at::Tensor loss_sum = at::where(has_teacher, (1 - a) * nll + a * divergence, nll).sum();
  context.activations.d_hidden.narrow(0, 0, N).copy_(torch::autograd::grad({loss_sum / kDenominator}, {hidden})[0]);
  model::decoder_backward(context.decoder, batch, context.activations);
  EXPECT_NEAR(got.loss_sum, loss_sum.item<double>(), 1e-5 * loss_sum.item<double>());
  EXPECT_CLOSE(got.grads, context.parameters.grads, tolerance(at::kFloat));
}

TEST(Objective, ATableRowForEveryLossType) {
  for (std::size_t i = 0; i < names_of(LossType{}).size(); ++i) {
    EXPECT_EQ(objective_for(static_cast<LossType>(i)).type, static_cast<LossType>(i));
  }
}

}  // namespace
}  // namespace lora_train::run
