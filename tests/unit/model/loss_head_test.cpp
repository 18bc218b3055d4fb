#include "lora_train/model/loss_head.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::model {
namespace {

using testing_support::tolerance;
using testing_support::uniform;

constexpr int64_t N = 9, D = 8, V = 21;
constexpr double kEps = 1e-5;

Batch make_batch() {
  Batch batch;
  batch.ids = at::zeros({N}, at::kInt);
  batch.supervised = at::tensor({0, 2, 3, 7, 8}, at::kLong);
  batch.targets = at::tensor({5, 20, 0, 5, 11}, at::kInt);
  return batch;
}

OuterWeights make_weights(bool is_trained) {
  OuterWeights weights;
  weights.embedding = weights.head = uniform({V, D}, 1);
  weights.is_tied = true;
  weights.final_norm.weight = uniform({D}, 2) + 2;
  if (is_trained) {
    weights.grad_head = weights.grad_embedding = at::zeros({V, D});
    weights.final_norm.grad = at::zeros({D});
  }
  return weights;
}

LossSums evaluate(LossHead& head, const at::Tensor& hidden, const Batch& batch, bool use_adapter = true) {
  return loss_sums(head.evaluate(hidden, batch, use_adapter), batch.num_trained_tokens());
}

struct Oracle {
  at::Tensor loss_sum, log_probs, hidden, head, norm;
};

/// Plain formula with autograd in fp64; `head` may already hold other rows.
Oracle oracle(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& norm, const Batch& batch,
              double logit_scale = 1) {
  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(true); };
  Oracle o;
  o.hidden = leaf(hidden);
  o.head = leaf(head);
  o.norm = leaf(norm);
  const at::Tensor x = o.hidden.index_select(0, batch.supervised);
  const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, true) + kEps) * o.norm;
  const at::Tensor log_softmax = at::log_softmax(at::mm(normed, o.head.t()) * logit_scale, -1);
  o.log_probs = log_softmax.gather(1, batch.targets.to(at::kLong).unsqueeze(1)).squeeze(1);
  o.loss_sum = batch.weights.defined() ? -(o.log_probs * batch.weights).sum() : -o.log_probs.sum();
  return o;
}

struct Inputs {
  const at::Tensor hidden = uniform({N, D}, 3);
  Batch batch = make_batch();
  OuterWeights frozen = make_weights(false), trained = make_weights(true);
};

/// Of a backward pass through these weights, and what autograd has for hidden, head and norm.
void expect_gradients(const at::Tensor& d_hidden, const OuterWeights& weights, const std::vector<at::Tensor>& want) {
  EXPECT_CLOSE(d_hidden, want[0], tolerance(at::kFloat));
  EXPECT_CLOSE(weights.grad_head, want[1], tolerance(at::kFloat));
  if (want.size() > 2) {
    EXPECT_CLOSE(weights.final_norm.grad, want[2], tolerance(at::kFloat));
  }
}

void expect_loss(double got, const Oracle& want) {
  EXPECT_NEAR(got, want.loss_sum.item<double>(), 1e-6 * std::abs(want.loss_sum.item<double>()));
}

class LossHeadTest : public testing::Test, protected Inputs {};

class LossHeadOf : public testing::TestWithParam<std::pair<bool, double>>,  // weights, logit scale
                   protected Inputs {};
INSTANTIATE_TEST_SUITE_P(All, LossHeadOf,
                         testing::Values(std::pair{false, 1.0}, std::pair{true, 1.0}, std::pair{true, 0.3}));

TEST_P(LossHeadOf, LossAndGradientsEqualAutogradInEveryChunking) {
  const auto [is_weighted, logit_scale] = GetParam();
  if (is_weighted) batch.weights = at::tensor({0.5F, 3.0F, 1.0F, 0.25F, 2.0F});
  for (const int64_t rows : {1, 2, 5}) {
    OuterWeights weights = make_weights(true);
    Oracle want = oracle(hidden, weights.head, weights.final_norm.weight, batch, logit_scale);
    LossHead head({weights, kEps, logit_scale}, {rows == 5 ? 5 : N, true, rows * V * 4});
    expect_loss(evaluate(head, hidden, batch).loss, want);
    at::Tensor d_hidden = at::full({N, D}, NAN), loss_sum = at::full({}, 100.0, at::kDouble);
    head.train(hidden, batch, at::scalar_tensor(4, at::kDouble), loss_sum, d_hidden);
    expect_loss(loss_sum.item<double>() - 100, want);
    expect_gradients(d_hidden, weights,
                     torch::autograd::grad({want.loss_sum * 0.25}, {want.hidden, want.head, want.norm}));
  }
}

TEST(LossHead, ADeviceThatCountsChunksComputesTheSame) {
  constexpr int64_t kNumTokens = 40, kTrained = 37, kChunk = 16;
  const at::Tensor hidden = uniform({kNumTokens, D}, 3), num_tokens = at::scalar_tensor(4, at::kDouble);
  Batch batch, padded;
  batch.ids = padded.ids = at::zeros({kNumTokens}, at::kInt);
  batch.supervised = at::arange(1, kTrained + 1, at::kLong);
  batch.targets = (at::arange(kTrained, at::kInt) * 5).remainder(V);
  padded.supervised = at::full({3 * kChunk}, kNumTokens, at::kLong);
  padded.targets = at::full({3 * kChunk}, kernels::kNoTarget, at::kInt);
  padded.supervised.narrow(0, 0, kTrained).copy_(batch.supervised);
  padded.targets.narrow(0, 0, kTrained).copy_(batch.targets);
  padded.num_supervised = kTrained;
  batch.weights = uniform({kTrained}, 6).add_(1);
  padded.weights = at::zeros({3 * kChunk});
  padded.weights.narrow(0, 0, kTrained).copy_(batch.weights);
  OuterWeights weights = make_weights(true), others = make_weights(true);
  Oracle want = oracle(hidden, weights.head, weights.final_norm.weight, batch);
  const auto grads = torch::autograd::grad({want.loss_sum / 4}, {want.hidden, want.head, want.norm});
  for (const bool is_counted : {false, true}) {
    OuterWeights& own = is_counted ? others : weights;
    LossHead head({own, kEps}, {kNumTokens, true, kChunk * V * 4, /*has_weights=*/true});
    at::Tensor d_hidden = at::full({kNumTokens, D}, NAN), loss_sum = at::zeros({}, at::kDouble);
    ASSERT_EQ(head.chunk_rows(), kChunk);
    if (is_counted) {
      ASSERT_EQ(head.num_chunks(padded), 3);
      head.begin(d_hidden);
      for (int i = 0; i < 3; ++i) head.train_next(hidden, padded, num_tokens, loss_sum, d_hidden);
    } else {
      head.train(hidden, batch, num_tokens, loss_sum, d_hidden);
    }
    expect_loss(loss_sum.item<double>(), want);
    expect_gradients(d_hidden, own, grads);
  }
}

TEST_F(LossHeadTest, AnObjectiveInTwoPassesGivesTheSameBits) {
  const at::Tensor denominator = at::scalar_tensor(7, at::kDouble);
  batch.weights = at::tensor({0.5F, 3.0F, 1.0F, 0.25F, 2.0F});
  OuterWeights others = make_weights(true);
  LossHead one_pass({trained, kEps}, {N, true, 2 * V * 4}), two_passes({others, kEps}, {N, true, 2 * V * 4});
  at::Tensor loss_sum = at::zeros({}, at::kDouble), d_hidden = at::empty({N, D}), d_other = at::empty({N, D});
  one_pass.train(hidden, batch, denominator, loss_sum, d_hidden);

  at::Tensor log_probs = at::full({5}, NAN);
  two_passes.log_probs(hidden, batch, log_probs);
  EXPECT_CLOSE(log_probs, oracle(hidden, others.head, others.final_norm.weight, batch).log_probs,
               tolerance(at::kFloat));
  const at::Tensor token_weights = batch.weights;
  batch.weights.reset();
  two_passes.backward(hidden, batch, token_weights, denominator, d_other);
  EXPECT_NEAR(-log_probs.to(at::kDouble).mul(token_weights).sum().item<double>(), loss_sum.item<double>(), 1e-12);
  EXPECT_TRUE(at::equal(d_other, d_hidden));
  EXPECT_TRUE(at::equal(others.grad_head, trained.grad_head));
  EXPECT_TRUE(at::equal(others.final_norm.grad, trained.final_norm.grad));
}

TEST_F(LossHeadTest, ObjectivesMayWantLowerProbabilities) {
  const at::Tensor token_weights = at::tensor({-1.5F, 0.0F, 2.0F, -0.25F, 1.0F});
  Batch weighted = make_batch();
  weighted.weights = token_weights;
  Oracle want = oracle(hidden, trained.head, trained.final_norm.weight, weighted);
  at::Tensor d_hidden = at::empty({N, D});
  LossHead({trained, kEps}, {N}).backward(hidden, batch, token_weights, at::scalar_tensor(2, at::kDouble), d_hidden);
  expect_gradients(d_hidden, trained, torch::autograd::grad({want.loss_sum / 2}, {want.hidden, want.head}));
}

TEST_F(LossHeadTest, TrainableRowsStandInForFrozenOnes) {
  frozen.head_rows.indices = at::tensor({20, 5}, at::kLong);
  frozen.head_rows.values = uniform({2, D}, 9);
  frozen.head_rows.grads = at::zeros({2, D});
  const at::Tensor head = frozen.head.index_copy(0, frozen.head_rows.indices, frozen.head_rows.values);
  Oracle want = oracle(hidden, head, frozen.final_norm.weight, batch);
  Oracle without_rows = oracle(hidden, frozen.head, frozen.final_norm.weight, batch);
  at::Tensor d_hidden = at::empty({N, D}), loss_sum = at::zeros({}, at::kDouble);
  LossHead({frozen, kEps}, {N}).train(hidden, batch, at::scalar_tensor(1, at::kDouble), loss_sum, d_hidden);
  expect_loss(loss_sum.item<double>(), want);
  const auto grads = torch::autograd::grad({want.loss_sum}, {want.hidden, want.head});
  EXPECT_CLOSE(d_hidden, grads[0], tolerance(at::kFloat));
  EXPECT_CLOSE(frozen.head_rows.grads, grads[1].index_select(0, frozen.head_rows.indices), tolerance(at::kFloat));

  LossHead evaluation({frozen, kEps}, {N, false});
  at::Tensor log_probs = at::empty({5});
  for (const bool use_adapter : {true, false}) {
    const Oracle& of = use_adapter ? want : without_rows;
    evaluation.log_probs(hidden, batch, log_probs, use_adapter);
    EXPECT_CLOSE(log_probs, of.log_probs, tolerance(at::kFloat)) << use_adapter;
    EXPECT_NEAR(evaluate(evaluation, hidden, batch, use_adapter).loss, of.loss_sum.item<double>(), 1e-5);
  }
  for (const auto product : {Product::kGemm, Product::kSkinny}) {
    const LmHead lm_head{frozen, kEps, 0.3};
    LossHead scaled({frozen, kEps, 0.3}, {N, false, int64_t{1} << 20});
    const at::Tensor picked = hidden.index_select(0, batch.supervised);
    const at::Tensor logits = lm_head_logits(lm_head, picked, true, product);
    scaled.log_probs(hidden, batch, log_probs);
    const at::Tensor targets = batch.targets.to(at::kLong).unsqueeze(1);
    EXPECT_CLOSE(logits.log_softmax(-1).gather(1, targets).squeeze(1), log_probs, tolerance(at::kFloat));
  }
}

TEST_F(LossHeadTest, CountsAccuracyAndConfidence) {
  Oracle want = oracle(hidden, frozen.head, frozen.final_norm.weight, batch);
  const at::Tensor x = want.hidden.index_select(0, batch.supervised).detach();
  const at::Tensor logits =
      at::mm(x * at::rsqrt(x.square().mean(-1, true) + kEps) * want.norm.detach(), want.head.detach().t());
  batch.targets = logits.argmax(-1).to(at::kInt);
  batch.targets[0] = (batch.targets[0].item<int>() + 1) % V;
  LossHead head({frozen, kEps}, {N, false});
  const LossSums sums = evaluate(head, hidden, batch);
  EXPECT_EQ(sums.num_correct, 4);
  double confidence = 0;
  int64_t count = 0;
  for (std::size_t k = 0; k < sums.bins.size(); ++k) {
    const auto& bin = sums.bins[k];
    confidence += bin.confidence;
    count += bin.count;
    EXPECT_GE(bin.confidence, static_cast<double>(bin.count) * static_cast<double>(k) / 15 - 1e-6) << k;
    EXPECT_LE(bin.confidence, static_cast<double>(bin.count) * static_cast<double>(k + 1) / 15 + 1e-6) << k;
  }
  EXPECT_EQ(sums.bins.size(), 15U);
  EXPECT_EQ(count, 5);
  EXPECT_NEAR(confidence, at::softmax(logits, -1).amax(-1).sum().item<double>(), 1e-5);
}

TEST_F(LossHeadTest, PaddedListsAndSeveralChunksEvaluateToTheSameBits) {
  batch.weights = at::tensor({0.5F, 3.0F, 1.0F, 0.25F, 2.0F});
  LossHead one({frozen, kEps}, {N, false, 5 * V * 4}), three({frozen, kEps}, {N, false, 2 * V * 4});
  const LossSums want = evaluate(one, hidden, batch);
  batch.num_supervised = 5;
  batch.supervised = at::cat({batch.supervised, at::full({3}, std::numeric_limits<int64_t>::max(), at::kLong)});
  batch.targets = at::cat({batch.targets, at::full({3}, kernels::kNoTarget, at::kInt)});
  batch.weights = at::cat({batch.weights, at::zeros({3})});
  for (LossHead* const head : {&one, &three}) {
    const LossSums sums = evaluate(*head, hidden, batch);
    EXPECT_EQ(sums.num_tokens, 5);
    EXPECT_EQ(sums.num_correct, want.num_correct);
    EXPECT_EQ(sums.losses, want.losses);
    EXPECT_DOUBLE_EQ(sums.loss, want.loss);
    for (std::size_t k = 0; k < want.bins.size(); ++k) {
      EXPECT_EQ(sums.bins[k].count, want.bins[k].count) << k;
      EXPECT_EQ(sums.bins[k].correct, want.bins[k].correct) << k;
    }
  }
}

TEST_F(LossHeadTest, LogitsThatAreNotFiniteGiveALossThatIsNot) {
  hidden[3].fill_(NAN);  // supervised
  LossHead head({frozen, kEps}, {N, false});
  const LossSums sums = evaluate(head, hidden, batch);
  EXPECT_TRUE(std::isnan(sums.loss));
  int64_t count = 0;
  for (const auto& bin : sums.bins) count += bin.count;
  EXPECT_EQ(count, 5);
  EXPECT_TRUE(std::isnan(sums.bins.back().confidence));
}

TEST_F(LossHeadTest, WithoutSupervisedRowsTheGradientIsZero) {
  batch.supervised = at::empty({0}, at::kLong);
  batch.targets = at::empty({0}, at::kInt);
  at::Tensor d_hidden = at::full({N, D}, NAN), loss_sum = at::zeros({}, at::kDouble);
  LossHead({frozen, kEps}, {N}).train(hidden, batch, at::scalar_tensor(1, at::kDouble), loss_sum, d_hidden);
  EXPECT_EQ(loss_sum.item<double>(), 0);
  EXPECT_TRUE(d_hidden.eq(0).all().item<bool>());
}

}  // namespace
}  // namespace lora_train::model
