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

LoraAdapter adapter(const std::string& path, int64_t begin, int64_t end, int64_t rank, double scale, double dropout,
                    std::uint64_t seed) {
  return {path, begin, end, 0, rank, scale, dropout, uniform({rank, D}, seed), uniform({end - begin, rank}, seed + 1),
          at::zeros({rank, D}), at::zeros({end - begin, rank})};
}

/// Two adapters of different rank on parts of one projection; the rows [kQ, kQ + kK) have none. C = 8.
Case make_case(at::ScalarType dtype, double dropout, GradientColumns gradient_columns) {
  Case made;
  Projection& p = made.projection;
  p.in_features = D;
  p.out_features = kQ + 2 * kK;
  p.gradient_columns = gradient_columns;
  add_adapter(p, adapter("q", 0, kQ, 2, 0.5, dropout, 10));
  add_adapter(p, adapter("v", kQ + kK, kQ + 2 * kK, 3, 2.0, dropout, 20));
  p.adapters.back().index = 1;
  made.base = uniform({p.out_features, D}, 1);
  p.weight = at::zeros({p.out_features + p.num_columns, p.input_width()}, dtype);
  p.base_weight().copy_(made.base);
  p.bias = uniform({p.out_features}, 2, dtype);
  write_adapter_columns(p);
  return made;
}

DropoutContext dropout_context(bool enabled) {
  DropoutContext context;
  context.enabled = enabled;
  context.keys = at::tensor({1, -2, 3, 4}, at::kInt).view({2, 2});
  context.token_document = at::zeros({N}, at::kInt);
  context.token_position = at::arange(N, at::kInt);
  return context;
}

/// The mask of one adapter as a factor: 0 or 1 / (1 - p).
at::Tensor mask_of(const LoraAdapter& a, const DropoutContext& context) {
  const at::Tensor ones = at::ones({N, D});
  if (!context.enabled) return ones.to(at::kDouble);
  at::Tensor out = at::empty_like(ones);
  kernels::dropout_forward(ones, context.token_document, context.token_position, context.keys[a.index], a.dropout, out);
  return out.to(at::kDouble);
}

/// dy with room for columns, NaN in it.
at::Tensor with_room(const Projection& p, const at::Tensor& dy) {
  at::Tensor wide = at::full({N, p.d_output_width()}, NAN);
  wide.narrow(1, 0, p.out_features).copy_(dy);
  return wide;
}

/// Dropout, and the form of the backward.
class ProjectionTest : public ::testing::TestWithParam<std::tuple<bool, GradientColumns>> {
 protected:
  const bool with_dropout = std::get<0>(GetParam());
  Case made = make_case(at::kFloat, with_dropout ? 0.5 : 0.0, std::get<1>(GetParam()));
};

TEST(Projection, ColumnsComeInWholeSteps) {
  const Projection p = make_case(at::kFloat, 0, GradientColumns::kBesideInput).projection;
  EXPECT_EQ(p.num_columns, 8);
  EXPECT_EQ(p.adapters[0].column, 0);
  EXPECT_EQ(p.adapters[1].column, 2);
}

TEST_P(ProjectionTest, EqualsPlainLoraAndItsAutogradGradients) {
  Projection& p = made.projection;
  const DropoutContext context = dropout_context(with_dropout);
  at::Tensor input = at::full({N, p.input_width()}, NAN), y = at::full({N, p.out_features}, NAN),
             scratch = at::full({N, p.input_width()}, NAN);
  const at::Tensor x = uniform({N, D}, 5), residual = uniform({N, p.out_features}, 6), dy = uniform({N, p.out_features}, 7);
  input.narrow(1, 0, D).copy_(x);
  fill_adapter_columns(p, input, context, scratch);
  projection_forward(p, input, residual, y);
  at::Tensor d_input = at::full({N, p.d_input_width()}, NAN), d_output = with_room(p, dy);
  projection_backward(p, input, d_output, d_input, true, context, scratch);
  EXPECT_TRUE(at::equal(d_output.narrow(1, 0, p.out_features), dy));

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
  const DropoutContext context = dropout_context(with_dropout);
  const at::Tensor x = uniform({N, D}, 5), dy = uniform({N, kQ + 2 * kK}, 7), scratch = at::empty({N, D + 8});
  std::vector<at::Tensor> grads;
  for (const bool need_input_grad : {true, false}) {
    Projection& p = made.projection;
    p.adapters[1].grad_a = at::zeros({p.adapters[1].rank, D});
    at::Tensor input = at::empty({N, p.input_width()}), d_input = at::full({N, p.d_input_width()}, NAN);
    at::Tensor d_output = with_room(p, dy);
    input.narrow(1, 0, D).copy_(x);
    fill_adapter_columns(p, input, context, scratch);
    projection_backward(p, input, d_output, d_input, need_input_grad, context, scratch);
    grads.push_back(p.adapters[1].grad_a);
  }
  EXPECT_CLOSE(grads[1], grads[0], tolerance(at::kFloat));
}

INSTANTIATE_TEST_SUITE_P(Forms, ProjectionTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(GradientColumns::kBesideInput,
                                                                                 GradientColumns::kBesideOutput)));

TEST(Projection, TrainedWeightsGetTheirGradientsAdded) {
  Projection p;
  p.in_features = D;
  p.out_features = 4;
  p.weight = uniform({4, D}, 1);
  p.bias = uniform({4}, 2);
  p.grad_weight = at::ones({4, D});
  p.grad_bias = at::ones({4});
  const at::Tensor x = uniform({N, D}, 3);
  at::Tensor d_input = at::empty({N, D}), dy = uniform({N, 4}, 4);
  projection_backward(p, x, dy, d_input, true, {}, {});
  EXPECT_CLOSE(p.grad_weight, at::mm(dy.t(), x) + 1, tolerance(at::kFloat));
  EXPECT_CLOSE(p.grad_bias, dy.sum(0) + 1, tolerance(at::kFloat));
  EXPECT_CLOSE(d_input, at::mm(dy, p.weight), tolerance(at::kFloat));
}

}  // namespace
}  // namespace lora_train::model
