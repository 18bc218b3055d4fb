// The gradients of an objective against autograd on the logits, and the same backward pass of the decoder.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "bench/bench_run.h"
#include "lora_train/kernels/aten.h"
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

model::Batch first_batch(Run& run) { return run.feed->put(*build_in_place(run.data.train, run.plan->step(1))()); }

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

/// The sum of a loss over the supervised tokens.
using LossSum = std::function<at::Tensor(const at::Tensor& log_softmax)>;

/// The same with the gradient of final_hidden from autograd.
Value value_of_autograd(Run& run, const model::Batch& batch, const LossSum& loss_sum_of) {
  StepContext& context = *run.context;
  context.parameters.grads.zero_();
  model::decoder_forward(context.decoder, batch, context.activations);
  const std::int64_t N = batch.num_tokens();
  const at::Tensor hidden =
      context.activations.final_hidden.narrow(0, 0, N).to(at::kDouble).detach().requires_grad_(true);
  const at::Tensor loss_sum = loss_sum_of(log_softmax_of(run, hidden, batch));
  const auto grads = torch::autograd::grad({loss_sum / kDenominator}, {hidden});
  context.activations.d_hidden.narrow(0, 0, N).copy_(grads[0]);
  model::decoder_backward(context.decoder, batch, context.activations);
  return {loss_sum.item<double>(), context.parameters.grads.clone()};
}

void expect_autograd(Run& run, const model::Batch& batch, const LossSum& loss_sum_of) {
  for (int i = 0; i < 2; ++i) {  // the second pass finds what the first left in the buffers
    const Value want = value_of_autograd(run, batch, loss_sum_of), got = value_of_objective(run, batch);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-5 * want.loss_sum);
    EXPECT_CLOSE(got.grads, want.grads, tolerance(at::kFloat));
  }
}

at::Tensor nll(const at::Tensor& log_probs) { return -log_probs; }
at::Tensor dft(const at::Tensor& log_probs) { return -log_probs.exp().detach() * log_probs; }

TEST(Objective, NllAndDftEqualAutograd) {
  for (const auto& [type, loss_of] : {std::pair{LossType::kNll, &nll}, {LossType::kDft, &dft}}) {
    const auto bench = run_with(type);
    model::Batch batch = first_batch(bench->run);
    const std::int64_t M = batch.num_trained_tokens();
    ASSERT_GT(M, 1);
    for (const bool has_weights : {false, true}) {
      if (has_weights) batch.weights = uniform({M}, 3).add_(1.5);
      expect_autograd(bench->run, batch, [&, loss = loss_of](const at::Tensor& log_softmax) {
        const at::Tensor losses = loss(of_targets(log_softmax, batch));
        return (has_weights ? losses * batch.weights : losses).sum();
      });
    }
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
  model::Batch batch = first_batch(bench->run);
  batch.soft = teacher_for(batch.num_trained_tokens());
  const double a = bench->run.context->objective.kd_alpha;
  expect_autograd(bench->run, batch, [&](const at::Tensor& log_q) {
    const at::Tensor nll = -of_targets(log_q, batch), log_p = batch.soft.log_probs.to(at::kDouble).log_softmax(1);
    const at::Tensor divergence =
        (log_p.exp() * (log_p - log_q.gather(1, batch.soft.ids.to(at::kLong).clamp_min(0)))).sum(1);
    const at::Tensor has_teacher = batch.soft.ids.select(1, 0) >= 0;
    return at::where(has_teacher, (1 - a) * nll + a * divergence, nll).sum();
  });
}

TEST(Objective, ATableRowForEveryLossType) {
  for (std::size_t i = 0; i < names_of(LossType{}).size(); ++i) {
    EXPECT_EQ(objective_for(static_cast<LossType>(i)).type, static_cast<LossType>(i));
  }
}

}  // namespace
}  // namespace lora_train::run
