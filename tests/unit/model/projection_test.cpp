// The fused projection with appended columns against the plain formula and its autograd gradients in fp64.
#include "lora_train/model/projection.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/autograd.h>

#include "lora_train/kernels/dropout.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::model {
namespace {

using testing_support::tolerance;
using testing_support::uniform;

constexpr int64_t N = 7, D = 11, kQ = 6, kK = 3;

struct Case {
  Projection projection;
  at::Tensor base;  ///< [O, D]
};

LoraAdapter adapter(const std::string& path, int64_t begin, int64_t end, int64_t column, int64_t rank, double scale,
                    double dropout, std::uint64_t seed) {
  return {path, begin, end, column, rank, scale, dropout, uniform({rank, D}, seed), uniform({end - begin, rank}, seed + 1),
          at::zeros({rank, D}), at::zeros({end - begin, rank})};
}

/// Two adapters of different rank on parts of one projection; the rows [kQ, kQ + kK) have none.
Case make_case(at::ScalarType dtype, double dropout) {
  Case made;
  Projection& p = made.projection;
  p.in_features = D;
  p.out_features = kQ + 2 * kK;
  p.adapters.push_back(adapter("q", 0, kQ, 0, 2, 0.5, dropout, 10));
  p.adapters.push_back(adapter("v", kQ + kK, kQ + 2 * kK, 2, 3, 2.0, dropout, 20));
  p.num_columns = 5;
  made.base = uniform({p.out_features, D}, 1);
  p.weight = at::zeros({p.out_features, D + 5}, dtype);
  p.weight.narrow(1, 0, D).copy_(made.base);
  p.lora_a = at::zeros({5, D}, dtype);
  p.bias = uniform({p.out_features}, 2, dtype);
  write_adapter_columns(p);
  return made;
}

DropoutContext dropout_context(bool enabled) {
  DropoutContext context;
  context.enabled = enabled;
  context.seed = 3;
  context.step = 4;
  context.token_document = at::zeros({N}, at::kInt);
  context.token_position = at::arange(N, at::kInt);
  return context;
}

/// The mask of one adapter as a factor: 0 or 1 / (1 - p).
at::Tensor mask_of(const LoraAdapter& a, const DropoutContext& context) {
  const at::Tensor ones = at::ones({N, D});
  if (!context.enabled) return ones.to(at::kDouble);
  at::Tensor out = at::empty_like(ones);
  kernels::dropout_forward(ones, context.token_document, context.token_position,
                           philox_key(context.seed, RandomPurpose::kLoraDropout, a.path, 4), a.dropout, out);
  return out.to(at::kDouble);
}

class ProjectionTest : public ::testing::TestWithParam<bool> {};

TEST_P(ProjectionTest, EqualsPlainLoraAndItsAutogradGradients) {
  const bool with_dropout = GetParam();
  Case made = make_case(at::kFloat, with_dropout ? 0.5 : 0.0);
  Projection& p = made.projection;
  const DropoutContext context = dropout_context(with_dropout);
  at::Tensor input = at::full({N, D + 5}, NAN), y = at::full({N, p.out_features}, NAN), scratch = at::full({N, D + 5}, NAN);
  const at::Tensor x = uniform({N, D}, 5), residual = uniform({N, p.out_features}, 6), dy = uniform({N, p.out_features}, 7);
  input.narrow(1, 0, D).copy_(x);
  fill_adapter_columns(p, input, context, scratch);
  projection_forward(p, input, residual, y);
  at::Tensor d_input = at::full({N, D + 5}, NAN);
  projection_backward(p, input, dy, d_input, true, context, scratch);

  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(true); };
  at::Tensor x64 = leaf(x);
  at::Tensor want = at::mm(x64, made.base.to(at::kDouble).t()) + p.bias.to(at::kDouble) + residual.to(at::kDouble);
  std::vector<at::Tensor> leaves{x64};
  for (const auto& a : p.adapters) {
    at::Tensor a64 = leaf(a.a), b64 = leaf(a.b);
    const at::Tensor delta = at::mm(at::mm(x64 * mask_of(a, context), a64.t()), b64.t()) * a.scale;
    want = at::cat({want.narrow(1, 0, a.out_begin), want.narrow(1, a.out_begin, a.out_end - a.out_begin) + delta,
                    want.narrow(1, a.out_end, p.out_features - a.out_end)}, 1);
    leaves.insert(leaves.end(), {a64, b64});
  }
  EXPECT_CLOSE(y, want.detach(), tolerance(at::kFloat));
  const auto grads = torch::autograd::grad({want}, leaves, {dy.to(at::kDouble)});
  EXPECT_CLOSE(d_input.narrow(1, 0, D), grads[0], tolerance(at::kFloat));
  for (std::size_t i = 0; i < p.adapters.size(); ++i) {
    EXPECT_CLOSE(p.adapters[i].grad_a, grads[1 + 2 * i], tolerance(at::kFloat));
    EXPECT_CLOSE(p.adapters[i].grad_b, grads[2 + 2 * i], tolerance(at::kFloat));
  }
}

TEST_P(ProjectionTest, AdapterGradientsDoNotNeedTheInputGradient) {
  const DropoutContext context = dropout_context(GetParam());
  const at::Tensor x = uniform({N, D}, 5), dy = uniform({N, kQ + 2 * kK}, 7), scratch = at::empty({N, D + 5});
  std::vector<at::Tensor> grads;
  for (const bool need_input_grad : {true, false}) {
    Case made = make_case(at::kFloat, GetParam() ? 0.5 : 0.0);
    at::Tensor input = at::empty({N, D + 5}), d_input = at::full({N, D + 5}, NAN);
    input.narrow(1, 0, D).copy_(x);
    fill_adapter_columns(made.projection, input, context, scratch);
    projection_backward(made.projection, input, dy, d_input, need_input_grad, context, scratch);
    grads.push_back(made.projection.adapters[1].grad_a);
  }
  EXPECT_CLOSE(grads[1], grads[0], tolerance(at::kFloat));
}

INSTANTIATE_TEST_SUITE_P(Dropout, ProjectionTest, ::testing::Bool());

TEST(Projection, TrainedWeightsGetTheirGradientsAdded) {
  Projection p;
  p.in_features = D;
  p.out_features = 4;
  p.weight = uniform({4, D}, 1);
  p.bias = uniform({4}, 2);
  p.grad_weight = at::ones({4, D});
  p.grad_bias = at::ones({4});
  const at::Tensor x = uniform({N, D}, 3), dy = uniform({N, 4}, 4);
  at::Tensor d_input = at::empty({N, D});
  projection_backward(p, x, dy, d_input, true, {}, {});
  EXPECT_CLOSE(p.grad_weight, at::mm(dy.t(), x) + 1, tolerance(at::kFloat));
  EXPECT_CLOSE(p.grad_bias, dy.sum(0) + 1, tolerance(at::kFloat));
  EXPECT_CLOSE(d_input, at::mm(dy, p.weight), tolerance(at::kFloat));
}

}  // namespace
}  // namespace lora_train::model
