#include "lora_train/kernels/qk_norm_rope.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/rms_norm.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class QkNormRope : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(QkNormRope);

struct Shape {
  int64_t N, H, K, E;
  int64_t qk() const { return (H + K) * E; }
  int64_t qkv() const { return (H + 2 * K) * E; }
};

const std::vector<Shape> kShapes = {{1, 1, 1, 2},   {3, 5, 2, 6},    {17, 4, 1, 34},
                                    {5, 14, 2, 64}, {3, 16, 8, 128}, {2, 3, 1, 256}};
constexpr int64_t kPositions = 40;
constexpr double kEps = 1e-6;

at::Tensor frequencies(int64_t E) {
  return at::pow(10000.0, at::arange(0, E, 2, at::kDouble) / static_cast<double>(-E)).to(at::kFloat);
}

/// Everything of a shape at a place; the same values at every place, rounded to its dtype.
struct Case {
  Case(const Shape& s, const Place& place, bool has_norm)
      : shape(s), positions((at::arange(s.N, at::kInt) * 7).remainder(kPositions).to(at::kInt).to(place.device)),
        table(make_rope_table(frequencies(s.E).to(place.device), kPositions, 1.0)),
        qkv(place.put(uniform({s.N, s.qkv()}, 1))), d_qkv(place.put(uniform({s.N, s.qkv()}, 2))) {
    d_qk = has_norm ? place.put(uniform({s.N, s.qk()}, 3)) : d_qkv;
    if (!has_norm) return;
    norm.q_weight = uniform({s.E}, 4).to(place.device, place.dtype);
    norm.k_weight = uniform({s.E}, 5).to(place.device, place.dtype);
    norm.eps = kEps;
    norm.raw = place.empty({s.N, s.qk()});
    norm.rstd = with_row_gaps(place.statistic({s.H + s.K, s.N}));
    norm.grad_q_weight = place.statistic({s.E});
    norm.grad_k_weight = place.statistic({s.E});
  }
  QkRotation rotation() const { return {shape.H, shape.K, positions, table}; }

  Shape shape;
  at::Tensor positions;
  RopeTable table;
  at::Tensor qkv, d_qkv, d_qk;
  QkNorm norm;
};

const Place kExact{at::kCPU, at::kDouble};

/// The same case in fp64, with the values that rounding left.
Case exact(const Case& given, bool has_norm) {
  Case same(given.shape, kExact, has_norm);
  same.qkv.copy_(given.qkv);
  same.d_qkv.copy_(given.d_qkv);
  same.d_qk.copy_(given.d_qk);
  if (!has_norm) return same;
  same.norm.q_weight.copy_(given.norm.q_weight);
  same.norm.k_weight.copy_(given.norm.k_weight);
  return same;
}

TEST(QkNormRopeReference, GradientMatchesCentralDifferences) {
  const Shape s{3, 2, 1, 6};
  Case c(s, kExact, true);
  const auto dy = uniform({s.N, s.qk()}, 9, at::kDouble);
  const auto start = c.qkv.contiguous();
  const auto loss = [&](const at::Tensor& values) {
    auto y = values.clone();
    qk_norm_rope_forward_reference(y, c.rotation(), c.norm);
    return (y.narrow(1, 0, s.qk()) * dy).sum().item<double>();
  };
  const auto expected = central_differences(loss, start);
  const auto weight = c.norm.q_weight.clone();
  const auto expected_weight = central_differences([&](const at::Tensor& values) {
    c.norm.q_weight.copy_(values);
    return loss(start);
  }, weight);
  c.norm.q_weight.copy_(weight);
  loss(start);
  auto d_qk = dy.clone();
  qk_norm_rope_backward_reference(d_qk, c.rotation(), c.norm, c.d_qkv);
  EXPECT_CLOSE(c.d_qkv.narrow(1, 0, s.qk()), expected.narrow(1, 0, s.qk()), kDifferenceTolerance);
  EXPECT_CLOSE(c.norm.grad_q_weight - 7, expected_weight, kDifferenceTolerance);
}

TEST_P(QkNormRope, ForwardMatchesReference) {
  const auto place = GetParam();
  for (const Shape& s : kShapes) {
    for (const bool has_norm : {false, true}) {
      Case c(s, place, has_norm);
      Case want = exact(c, has_norm);
      const auto before = c.qkv.clone();
      qk_norm_rope_forward(c.qkv, c.rotation(), c.norm);
      qk_norm_rope_forward_reference(want.qkv, want.rotation(), want.norm);
      EXPECT_CLOSE(c.qkv, want.qkv, tolerance(place.dtype)) << s.E;
      EXPECT_TRUE(at::equal(c.qkv.narrow(1, s.qk(), s.K * s.E), before.narrow(1, s.qk(), s.K * s.E)));
      EXPECT_TRUE(gaps_are_untouched(c.qkv));
      if (!has_norm) continue;
      EXPECT_TRUE(at::equal(c.norm.raw, before.narrow(1, 0, s.qk())));
      EXPECT_CLOSE(c.norm.rstd, want.norm.rstd, std::min(kTightFloatTolerance, tolerance(place.dtype)));
      EXPECT_TRUE(gaps_are_untouched(c.norm.raw) && gaps_are_untouched(c.norm.rstd));
    }
  }
}

TEST_P(QkNormRope, BackwardMatchesReference) {
  const auto place = GetParam();
  for (const Shape& s : kShapes) {
    for (const bool has_norm : {false, true}) {
      Case c(s, place, has_norm);
      Case want = exact(c, has_norm);
      if (has_norm) {
        want.norm.raw.copy_(want.qkv.narrow(1, 0, s.qk()));
        want.norm.rstd.copy_((want.norm.raw.unflatten(1, {s.H + s.K, s.E}).square().mean(2) + kEps).rsqrt().t());
        c.norm.raw.copy_(want.norm.raw);
        c.norm.rstd.copy_(want.norm.rstd);
      }
      const auto before = c.d_qkv.clone();
      qk_norm_rope_backward(c.d_qk, c.rotation(), c.norm, c.d_qkv);
      qk_norm_rope_backward_reference(want.d_qk, want.rotation(), want.norm, want.d_qkv);
      EXPECT_CLOSE(c.d_qkv, want.d_qkv, tolerance(place.dtype)) << s.E << has_norm;
      EXPECT_TRUE(at::equal(c.d_qkv.narrow(1, s.qk(), s.K * s.E), before.narrow(1, s.qk(), s.K * s.E)));
      EXPECT_TRUE(gaps_are_untouched(c.d_qkv));
      if (!has_norm) continue;
      EXPECT_CLOSE(c.norm.grad_q_weight - 7, want.norm.grad_q_weight - 7, tolerance(place.dtype)) << s.E;
      EXPECT_CLOSE(c.norm.grad_k_weight - 7, want.norm.grad_k_weight - 7, tolerance(place.dtype)) << s.E;
    }
  }
}

TEST_P(QkNormRope, FrozenNormsGetNoGradient) {
  Case c(kShapes[2], GetParam(), true), trained(kShapes[2], GetParam(), true);
  for (Case* one : {&c, &trained}) qk_norm_rope_forward(one->qkv, one->rotation(), one->norm);
  c.norm.grad_q_weight = c.norm.grad_k_weight = at::Tensor();
  qk_norm_rope_backward(c.d_qk, c.rotation(), c.norm, c.d_qkv);
  qk_norm_rope_backward(trained.d_qk, trained.rotation(), trained.norm, trained.d_qkv);
  EXPECT_TRUE(at::equal(c.d_qkv, trained.d_qkv));
}

TEST(QkNormRopeOnCpu, IsNormHeadByHeadThenRope) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Shape s{9, 3, 2, 64};
    Case c(s, {at::kCPU, dtype}, true);
    const auto expected = c.qkv.clone();
    for (int64_t head = 0; head < s.H + s.K; ++head) {
      auto y = expected.narrow(1, head * s.E, s.E), rstd = at::empty({s.N});
      rms_norm_forward(c.qkv.narrow(1, head * s.E, s.E), head < s.H ? c.norm.q_weight : c.norm.k_weight, kEps, y, rstd);
      auto turned = y.unflatten(1, {1, s.E});
      rope_in_place(turned, c.positions, c.table, false);
    }
    qk_norm_rope_forward(c.qkv, c.rotation(), c.norm);
    EXPECT_TRUE(at::equal(c.qkv, expected));
  }
}

TEST(QkNormRope, RefusesGradientsElsewhereWithoutNorm) {
  Case c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, false);
  auto elsewhere = c.d_qkv.clone();
  EXPECT_THROW(qk_norm_rope_backward(elsewhere, c.rotation(), c.norm, c.d_qkv), ShapeError);
}

TEST(QkNormRope, RefusesWeightsOfAnotherHeadSize) {
  Case c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, true);
  c.norm.k_weight = at::ones({8});
  EXPECT_THROW(qk_norm_rope_forward(c.qkv, c.rotation(), c.norm), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
