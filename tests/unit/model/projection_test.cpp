// The fused projection with appended columns against the plain formula and its autograd gradients in fp64.
#include "lora_train/model/projection.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dropout/dropout.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::model {
namespace {

using testing_support::tolerance;
using testing_support::uniform;

constexpr int64_t kTokens = 7, kFeatures = 11, kQ = 6, kK = 3;

/// Gives the adapter the columns after those of the adapters before it.
void add_adapter(Projection& projection, LoraAdapter adapter) {
  const auto& before = projection.adapters;
  adapter.column = before.empty() ? 0 : before.back().column + before.back().rank;
  projection.num_columns = (adapter.column + adapter.rank + kColumnStep - 1) / kColumnStep * kColumnStep;
  projection.adapters.push_back(std::move(adapter));
}

struct Case {
  Projection projection;
  at::Tensor base;  ///< [outputs, features]
};

LoraAdapter adapter(const std::string& path, int64_t begin, int64_t end, int64_t rank, double scale, double dropout,
                    std::uint64_t seed) {
  const at::Tensor a = uniform({rank, kFeatures}, seed), b = uniform({end - begin, rank}, seed + 1);
  return {path, begin, end, 0, rank, scale, dropout, {a, b}, {at::zeros_like(a), at::zeros_like(b)}};
}

/// Two adapters of different rank on parts of one projection; the rows [kQ, kQ + kK) have none. C = 8.
Case make_case(double dropout, GradientColumns gradient_columns, bool is_fused, double output_scale) {
  const at::ScalarType dtype = at::kFloat;
  Case made;
  Projection& p = made.projection;
  p.in_features = kFeatures;
  p.out_features = kQ + 2 * kK;
  p.gradient_columns = gradient_columns;
  p.output_scale = output_scale;
  add_adapter(p, adapter("q", 0, kQ, 2, 0.5, dropout, 10));
  add_adapter(p, adapter("v", kQ + kK, kQ + 2 * kK, 3, 2.0, dropout, 20));
  p.adapters.back().index = 1;
  made.base = uniform({p.out_features, kFeatures}, 1);
  if (is_fused) {
    p.weight = at::zeros({p.out_features + p.num_columns, p.input_width()}, dtype);
    p.base_weight().copy_(made.base);
  } else {
    p.base = made.base.to(dtype);
    p.b_columns = at::zeros({p.out_features, p.num_columns}, dtype);
    p.a_rows = at::zeros({p.num_columns, kFeatures}, dtype);
  }
  p.bias = uniform({p.out_features}, 2, dtype);
  kernels::ScaledCopies columns;
  add_adapter_copies(p, [&](const auto& from, double scale, const auto& to) { columns.add(from, scale, to); });
  columns.run();
  return made;
}

DropoutContext dropout_context(bool enabled) {
  return {.enabled = enabled,
          .keys = at::tensor({1, -2, 3, 4}, at::kInt).view({2, 2}),
          .token_document = at::zeros({kTokens}, at::kInt),
          .token_position = at::arange(kTokens, at::kInt)};
}

/// The mask of one adapter as a factor: 0 or 1 / (1 - p).
at::Tensor mask_of(const LoraAdapter& a, const DropoutContext& context) {
  const at::Tensor ones = at::ones({kTokens, kFeatures});
  if (!context.enabled) return ones.to(at::kDouble);
  at::Tensor out = at::empty_like(ones);
  kernels::dropout_forward(ones, context.token_document, context.token_position, context.keys[a.index], a.dropout, out);
  return out.to(at::kDouble);
}

/// dy with room for columns, NaN in it.
at::Tensor with_room(const Projection& p, const at::Tensor& dy) {
  at::Tensor wide = at::full({kTokens, p.d_output_width()}, NAN);
  wide.narrow(1, 0, p.out_features).copy_(dy);
  return wide;
}

/// Dropout, the form of the backward, base and adapter in one matrix or not, and the scale of the output.
class ProjectionTest : public ::testing::TestWithParam<std::tuple<bool, GradientColumns, bool, double>> {
 protected:
  const bool with_dropout = std::get<0>(GetParam());
  const double output_scale = std::get<3>(GetParam());
  Case made = make_case(with_dropout ? 0.5 : 0.0, std::get<1>(GetParam()), std::get<2>(GetParam()), output_scale);
};

TEST_P(ProjectionTest, EqualsPlainLoraAndItsAutogradGradients) {
  Projection& p = made.projection;
  const DropoutContext context = dropout_context(with_dropout);
  at::Tensor input = at::full({kTokens, p.input_width()}, NAN), y = at::full({kTokens, p.out_features}, NAN),
             scratch = at::full({kTokens, p.input_width()}, NAN);
  const at::Tensor x = uniform({kTokens, kFeatures}, 5), residual = uniform({kTokens, p.out_features}, 6),
                   dy = uniform({kTokens, p.out_features}, 7);
  input.narrow(1, 0, kFeatures).copy_(x);
  fill_adapter_columns(p, input, {context, scratch});
  projection_forward(p, input, residual, y, {context, scratch});
  at::Tensor d_input = at::full({kTokens, p.d_input_width()}, NAN), d_output = with_room(p, dy);
  projection_backward(p, input, d_output, d_input, true, {context, scratch});
  EXPECT_TRUE(at::equal(d_output.narrow(1, 0, p.out_features), dy));

  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(true); };
  at::Tensor x64 = leaf(x);
  at::Tensor want =
      at::mm(x64, made.base.to(at::kDouble).t()) * output_scale + p.bias.to(at::kDouble) + residual.to(at::kDouble);
  std::vector<at::Tensor> leaves{x64};
  for (const auto& a : p.adapters) {
    at::Tensor a64 = leaf(a.masters[kLoraA]), b64 = leaf(a.masters[kLoraB]);
    const at::Tensor delta = at::mm(at::mm(x64 * mask_of(a, context), a64.t()), b64.t()) * (a.scale * output_scale);
    want = at::cat({want.narrow(1, 0, a.out_begin), want.narrow(1, a.out_begin, a.out_end - a.out_begin) + delta,
                    want.narrow(1, a.out_end, p.out_features - a.out_end)},
                   1);
    leaves.insert(leaves.end(), {a64, b64});
  }
  EXPECT_CLOSE(y, want.detach(), tolerance(at::kFloat));
  const auto grads = torch::autograd::grad({want}, leaves, {dy.to(at::kDouble)});
  EXPECT_CLOSE(d_input.narrow(1, 0, kFeatures), grads[0], tolerance(at::kFloat));
  for (std::size_t i = 0; i < p.adapters.size(); ++i) {
    EXPECT_CLOSE(p.adapters[i].grads[kLoraA], grads[1 + 2 * i], tolerance(at::kFloat));
    EXPECT_CLOSE(p.adapters[i].grads[kLoraB], grads[2 + 2 * i], tolerance(at::kFloat));
  }
}

TEST_P(ProjectionTest, AdapterGradientsDoNotNeedTheInputGradient) {
  const DropoutContext context = dropout_context(with_dropout);
  const at::Tensor x = uniform({kTokens, kFeatures}, 5), dy = uniform({kTokens, kQ + 2 * kK}, 7),
                   scratch = at::empty({kTokens, kFeatures + 8});
  std::vector<at::Tensor> grads;
  for (const bool need_input_grad : {true, false}) {
    Projection& p = made.projection;
    p.adapters[1].grads[kLoraA] = at::zeros({p.adapters[1].rank, kFeatures});
    at::Tensor input = at::empty({kTokens, p.input_width()}), d_input = at::full({kTokens, p.d_input_width()}, NAN);
    at::Tensor d_output = with_room(p, dy);
    input.narrow(1, 0, kFeatures).copy_(x);
    fill_adapter_columns(p, input, {context, scratch});
    projection_backward(p, input, d_output, d_input, need_input_grad, {context, scratch});
    grads.push_back(p.adapters[1].grads[kLoraA]);
  }
  EXPECT_CLOSE(grads[1], grads[0], tolerance(at::kFloat));
}

INSTANTIATE_TEST_SUITE_P(Forms, ProjectionTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(GradientColumns::kBesideInput,
                                                              GradientColumns::kBesideOutput),
                                            ::testing::Bool(), ::testing::Values(1.0, 0.25)));

TEST_P(ProjectionTest, WithoutTheAdapterItIsTheBase) {
  const Projection& p = made.projection;
  const at::Tensor x = uniform({kTokens, kFeatures}, 5);
  at::Tensor input = at::full({kTokens, p.input_width()}, NAN), y = at::empty({kTokens, p.out_features});
  input.narrow(1, 0, kFeatures).copy_(x);
  const LinearPass pass{.use_adapter = false};
  fill_adapter_columns(p, input, pass);
  projection_forward(p, input, {}, y, pass);
  EXPECT_CLOSE(y, at::mm(x, made.base.t()) * output_scale + p.bias, tolerance(at::kFloat));
}

TEST(Projection, TrainedWeightsGetTheirGradientsAdded) {
  Projection p;
  p.in_features = kFeatures;
  p.out_features = 4;
  p.weight = uniform({4, kFeatures}, 1);
  p.bias = uniform({4}, 2);
  p.grad_weight = at::ones({4, kFeatures});
  p.grad_bias = at::ones({4});
  const at::Tensor x = uniform({kTokens, kFeatures}, 3);
  at::Tensor d_input = at::empty({kTokens, kFeatures}), dy = uniform({kTokens, 4}, 4);
  projection_backward(p, x, dy, d_input, true, {});
  EXPECT_CLOSE(p.grad_weight, at::mm(dy.t(), x) + 1, tolerance(at::kFloat));
  EXPECT_CLOSE(p.grad_bias, dy.sum(0) + 1, tolerance(at::kFloat));
  EXPECT_CLOSE(d_input, at::mm(dy, p.weight), tolerance(at::kFloat));
}

}  // namespace
}  // namespace lora_train::model
