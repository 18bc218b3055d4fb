#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr int64_t M = 5, V = 33, K = 4;

/// Row 1 has two tokens of the teacher, row 2 none; row 4 has no target.
struct Case {
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
    Case c;
    const at::Tensor z = c.logits.detach().clone().requires_grad_();
    const at::Tensor want = c.expected(z, options);
    const auto grads = torch::autograd::grad({(want * c.weights).sum() / 4}, {z});
    at::Tensor losses = at::empty({M}, at::kDouble), in_place = c.logits.clone();
    soft_cross_entropy_in_place(in_place, c.targets, c.weights, c.soft, options, {}, losses);
    EXPECT_TRUE(at::equal(in_place, c.logits));
    soft_cross_entropy_in_place(in_place, c.targets, c.weights, c.soft, options, c.denominator, losses);
    EXPECT_CLOSE(losses, want.detach(), 1e-12);
    EXPECT_CLOSE(in_place, grads[0], 1e-12);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor low = c.logits.to(dtype), loss = at::empty({M}, at::kFloat);
      Case rounded;
      rounded.logits = low.to(at::kDouble);
      soft_cross_entropy_in_place(low, c.targets, c.weights, c.soft, options, c.denominator, loss);
      EXPECT_CLOSE(loss, rounded.expected(rounded.logits, options), 1e-5);
      EXPECT_CLOSE(low, grads[0], dtype == at::kFloat ? 1e-5 : 2e-2);
    }
  }
}

TEST(SoftCrossEntropy, WithoutTheTeacherItIsCrossEntropy) {
  Case c;
  c.soft.ids.fill_(-1);
  at::Tensor soft_losses = at::empty({M}, at::kDouble), losses = at::empty({M}, at::kDouble);
  at::Tensor soft = c.logits.clone(), plain = c.logits.clone();
  soft_cross_entropy_in_place(soft, c.targets, c.weights, c.soft, {2, 1}, c.denominator, soft_losses);
  CrossEntropyOutput output{losses, {}, {}};
  cross_entropy_in_place_reference(plain, c.targets, c.weights, c.denominator, output);
  EXPECT_CLOSE(soft_losses, losses, 1e-13);
  EXPECT_CLOSE(soft, plain, 1e-13);
}

TEST(SoftCrossEntropy, RefusesOtherShapes) {
  Case c;
  at::Tensor losses = at::empty({M}, at::kDouble);
  const SoftTargets other{c.soft.ids.narrow(0, 0, 3), c.soft.log_probs};
  EXPECT_THROW(soft_cross_entropy_in_place(c.logits, c.targets, {}, other, {}, {}, losses), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
