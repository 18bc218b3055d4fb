#include "lora_train/model/loss_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "lora_train/kernels/cross_entropy.h"
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

struct Oracle {
  at::Tensor loss_sum, hidden, head, norm;
};

/// Plain formula with autograd in fp64; `head` may already hold other rows.
Oracle oracle(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& norm, const Batch& batch) {
  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(true); };
  Oracle o;
  o.hidden = leaf(hidden);
  o.head = leaf(head);
  o.norm = leaf(norm);
  const at::Tensor x = o.hidden.index_select(0, batch.supervised);
  const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, true) + kEps) * o.norm;
  const at::Tensor log_probability = at::log_softmax(at::mm(normed, o.head.t()), -1);
  o.loss_sum = -log_probability.gather(1, batch.targets.to(at::kLong).unsqueeze(1)).sum();
  return o;
}

TEST(LossHead, LossAndGradientsEqualAutogradInEveryChunking) {
  const at::Tensor hidden = uniform({N, D}, 3);
  const Batch batch = make_batch();
  for (const int64_t rows : {1, 2, 5}) {
    OuterWeights weights = make_weights(true);
    Oracle want = oracle(hidden, weights.head, weights.final_norm.weight, batch);
    LossHead head(weights, {kEps, rows == 5 ? 5 : N, true, rows * V * 4});
    at::Tensor d_hidden = at::full({N, D}, NAN), loss_sum = at::full({}, 100.0, at::kDouble);
    head.train(hidden, batch, at::scalar_tensor(4, at::kDouble), loss_sum, d_hidden);
    EXPECT_NEAR(loss_sum.item<double>() - 100, want.loss_sum.item<double>(), 1e-6 * want.loss_sum.item<double>());
    const auto grads = torch::autograd::grad({want.loss_sum * 0.25}, {want.hidden, want.head, want.norm});
    EXPECT_CLOSE(d_hidden, grads[0], tolerance(at::kFloat));
    EXPECT_CLOSE(weights.grad_head, grads[1], tolerance(at::kFloat));
    EXPECT_CLOSE(weights.final_norm.grad, grads[2], tolerance(at::kFloat));
  }
}

TEST(LossHead, ADeviceThatCountsChunksComputesTheSame) {
  constexpr int64_t kTokens = 40, kTrained = 37, kChunk = 16;
  const at::Tensor hidden = uniform({kTokens, D}, 3), num_tokens = at::scalar_tensor(4, at::kDouble);
  Batch batch, padded;
  batch.ids = padded.ids = at::zeros({kTokens}, at::kInt);
  batch.supervised = at::arange(1, kTrained + 1, at::kLong);
  batch.targets = (at::arange(kTrained, at::kInt) * 5).remainder(V);
  padded.supervised = at::full({3 * kChunk}, kTokens, at::kLong);
  padded.targets = at::full({3 * kChunk}, kernels::kNoTarget, at::kInt);
  padded.supervised.narrow(0, 0, kTrained).copy_(batch.supervised);
  padded.targets.narrow(0, 0, kTrained).copy_(batch.targets);
  padded.num_supervised = kTrained;
  OuterWeights weights = make_weights(true), others = make_weights(true);
  Oracle want = oracle(hidden, weights.head, weights.final_norm.weight, batch);
  const auto grads = torch::autograd::grad({want.loss_sum / 4}, {want.hidden, want.head, want.norm});
  for (const bool is_counted : {false, true}) {
    OuterWeights& own = is_counted ? others : weights;
    LossHead head(own, {kEps, kTokens, true, kChunk * V * 4});
    at::Tensor d_hidden = at::full({kTokens, D}, NAN), loss_sum = at::zeros({}, at::kDouble);
    ASSERT_EQ(head.chunk_rows(), kChunk);
    if (is_counted) {
      ASSERT_EQ(head.num_chunks(padded), 3);
      head.begin(d_hidden);
      for (int i = 0; i < 3; ++i) head.train_next(hidden, padded, num_tokens, loss_sum, d_hidden);
    } else {
      head.train(hidden, batch, num_tokens, loss_sum, d_hidden);
    }
    EXPECT_NEAR(loss_sum.item<double>(), want.loss_sum.item<double>(), 1e-6 * want.loss_sum.item<double>());
    EXPECT_CLOSE(d_hidden, grads[0], tolerance(at::kFloat));
    EXPECT_CLOSE(own.grad_head, grads[1], tolerance(at::kFloat));
    EXPECT_CLOSE(own.final_norm.grad, grads[2], tolerance(at::kFloat));
  }
}

TEST(LossHead, TrainableRowsStandInForFrozenOnes) {
  const at::Tensor hidden = uniform({N, D}, 3);
  const Batch batch = make_batch();
  OuterWeights weights = make_weights(false);
  weights.rows.indices = at::tensor({20, 5}, at::kLong);
  weights.rows.values = uniform({2, D}, 9);
  weights.rows.grads = at::zeros({2, D});
  const at::Tensor head = weights.head.index_copy(0, weights.rows.indices, weights.rows.values);
  Oracle want = oracle(hidden, head, weights.final_norm.weight, batch);
  at::Tensor d_hidden = at::empty({N, D}), loss_sum = at::zeros({}, at::kDouble);
  LossHead(weights, {kEps, N}).train(hidden, batch, at::scalar_tensor(1, at::kDouble), loss_sum, d_hidden);
  EXPECT_NEAR(loss_sum.item<double>(), want.loss_sum.item<double>(), 1e-6 * want.loss_sum.item<double>());
  const auto grads = torch::autograd::grad({want.loss_sum}, {want.hidden, want.head});
  EXPECT_CLOSE(d_hidden, grads[0], tolerance(at::kFloat));
  EXPECT_CLOSE(weights.rows.grads, grads[1].index_select(0, weights.rows.indices), tolerance(at::kFloat));
}

TEST(LossHead, CountsAccuracyAndConfidence) {
  const at::Tensor hidden = uniform({N, D}, 3);
  Batch batch = make_batch();
  OuterWeights weights = make_weights(false);
  Oracle want = oracle(hidden, weights.head, weights.final_norm.weight, batch);
  const at::Tensor x = want.hidden.index_select(0, batch.supervised).detach();
  const at::Tensor logits = at::mm(x * at::rsqrt(x.square().mean(-1, true) + kEps) * want.norm.detach(), want.head.detach().t());
  batch.targets = logits.argmax(-1).to(at::kInt);
  batch.targets[0] = (batch.targets[0].item<int>() + 1) % V;
  const LossSums sums = LossHead(weights, {kEps, N, false}).evaluate(hidden, batch);
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

TEST(LossHead, LogitsThatAreNotFiniteGiveALossThatIsNot) {
  at::Tensor hidden = uniform({N, D}, 3);
  hidden[3].fill_(NAN);  // supervised
  OuterWeights weights = make_weights(false);
  const LossSums sums = LossHead(weights, {kEps, N, false}).evaluate(hidden, make_batch());
  EXPECT_TRUE(std::isnan(sums.loss));
  int64_t count = 0;
  for (const auto& bin : sums.bins) count += bin.count;
  EXPECT_EQ(count, 5);
  EXPECT_TRUE(std::isnan(sums.bins.back().confidence));
}

TEST(LossHead, WithoutSupervisedRowsTheGradientIsZero) {
  Batch batch = make_batch();
  batch.supervised = at::empty({0}, at::kLong);
  batch.targets = at::empty({0}, at::kInt);
  OuterWeights weights = make_weights(false);
  at::Tensor d_hidden = at::full({N, D}, NAN), loss_sum = at::zeros({}, at::kDouble);
  LossHead(weights, {kEps, N}).train(uniform({N, D}, 3), batch, at::scalar_tensor(1, at::kDouble), loss_sum, d_hidden);
  EXPECT_EQ(loss_sum.item<double>(), 0);
  EXPECT_TRUE(d_hidden.eq(0).all().item<bool>());
}

}  // namespace
}  // namespace lora_train::model
