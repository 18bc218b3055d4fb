#include <ATen/ATen.h>

#include <array>
#include <functional>

#include "lora_train/base/error.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "lora_train/kernels/rope/rope.h"
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

// Heads that leave lanes of a GPU idle (80, 96), more of them than a block has groups (256), more than one pack a lane (580,
// 1056).
const std::vector<Shape> kShapes = {{1, 1, 1, 2},    {3, 5, 2, 6},  {17, 4, 1, 34},  {5, 14, 2, 64}, {2, 3, 1, 80},
                                    {3, 16, 8, 128}, {3, 4, 2, 96}, {2, 14, 3, 256}, {2, 9, 1, 580}, {1, 2, 1, 1056}};
constexpr int64_t kPositions = 40;
constexpr double kEps = 1e-6;

at::Tensor frequencies(int64_t E) {
  return at::pow(10000.0, at::arange(0, E, 2, at::kDouble) / static_cast<double>(-E)).to(at::kFloat);
}

/// Where the gradients of q, k and v come from.
enum class Source { kInPlace, kApart, kFewerTokens, kOnlyVInPlace };
constexpr std::array kSources = {Source::kInPlace, Source::kApart, Source::kFewerTokens, Source::kOnlyVInPlace};

/// Everything of a shape at a place; the same values at every place, rounded to its dtype.
struct Case {
  Case(const Shape& s, const Place& place, bool has_norm, Source from = Source::kInPlace)
      : shape(s),
        positions((at::arange(s.N, at::kInt) * 7).remainder(kPositions).to(at::kInt).to(place.device)),
        table(make_rope_table(frequencies(s.E).to(place.device), kPositions, 1.0)),
        qkv(place.put(uniform({s.N, s.qkv()}, 1))),
        d_qkv(place.put(uniform({s.N, s.qkv()}, 2))) {
    const int64_t M = from == Source::kFewerTokens ? s.N / 2 : s.N;
    given = {d_qkv.narrow(1, 0, s.H * s.E).unflatten(1, {s.H, s.E}),
             d_qkv.narrow(1, s.H * s.E, s.K * s.E).unflatten(1, {s.K, s.E}), v_of(d_qkv)};
    if (from != Source::kInPlace) {
      given.q = place.put(uniform({M, s.H, s.E}, 3));
      given.k = place.put(uniform({M, s.K, s.E}, 6));
      if (from != Source::kOnlyVInPlace) given.v = place.put(uniform({M, s.K, s.E}, 7));
    }
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
  at::Tensor v_of(const at::Tensor& wide) const {
    return wide.narrow(1, shape.qk(), shape.K * shape.E).unflatten(1, {shape.K, shape.E});
  }
  /// What the norm's forward keeps, for the values of qkv.
  void save() {
    norm.raw.copy_(qkv.narrow(1, 0, shape.qk()));
    norm.rstd.copy_((norm.raw.unflatten(1, {shape.H + shape.K, shape.E}).square().mean(2) + kEps).rsqrt().t());
  }

  Shape shape;
  at::Tensor positions;
  RopeTable table;
  at::Tensor qkv, d_qkv;
  AttentionGradients given;
  QkNorm norm;
};

const Place kExact{at::kCPU, at::kDouble};

/// The same case in fp64, with the values that rounding left.
Case exact(const Case& given, bool has_norm, Source from = Source::kInPlace) {
  Case same(given.shape, kExact, has_norm, from);
  same.qkv.copy_(given.qkv);
  same.d_qkv.copy_(given.d_qkv);
  same.given.q.copy_(given.given.q);
  same.given.k.copy_(given.given.k);
  same.given.v.copy_(given.given.v);
  if (!has_norm) return same;
  same.norm.q_weight.copy_(given.norm.q_weight);
  same.norm.k_weight.copy_(given.norm.k_weight);
  return same;
}

void expect_central_differences(double weight_offset) {
  const Shape s{3, 2, 1, 6};
  Case c(s, kExact, true);
  c.norm.weight_offset = weight_offset;
  const auto dy = uniform({s.N, s.qk()}, 9, at::kDouble);
  const auto start = c.qkv.contiguous();
  const auto loss = [&](const at::Tensor& values) {
    auto y = values.clone();
    qk_norm_rope_forward_reference(y, c.rotation(), c.norm);
    return (y.narrow(1, 0, s.qk()) * dy).sum().item<double>();
  };
  const auto expected = central_differences(loss, start);
  const auto weight = c.norm.q_weight.clone();
  const auto expected_weight = central_differences(
      [&](const at::Tensor& values) {
        c.norm.q_weight.copy_(values);
        return loss(start);
      },
      weight);
  c.norm.q_weight.copy_(weight);
  loss(start);
  c.d_qkv.narrow(1, 0, s.qk()).copy_(dy);
  qk_norm_rope_backward_reference(c.given, c.rotation(), c.norm, c.d_qkv);
  EXPECT_CLOSE(c.d_qkv.narrow(1, 0, s.qk()), expected.narrow(1, 0, s.qk()), kDifferenceTolerance);
  EXPECT_CLOSE(c.norm.grad_q_weight - 7, expected_weight, kDifferenceTolerance);
}

TEST(QkNormRopeReference, GradientMatchesCentralDifferences) { expect_central_differences(0); }
TEST(QkNormRopeReference, GradientOfOnePlusWeightMatchesCentralDifferences) { expect_central_differences(1); }

enum class Norm { kNone, kPlain, kOnePlus };  ///< kOnePlus: 1 + weight, as Gemma has it
constexpr std::array kNorms = {Norm::kNone, Norm::kPlain, Norm::kOnePlus};

TEST_P(QkNormRope, ForwardMatchesReference) {
  const auto place = GetParam();
  for (const Shape& s : kShapes) {
    for (const Norm norm : kNorms) {
      const bool has_norm = norm != Norm::kNone;
      Case c(s, place, has_norm);
      Case want = exact(c, has_norm);
      c.norm.weight_offset = want.norm.weight_offset = norm == Norm::kOnePlus ? 1 : 0;
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

void expect_backward(const Shape& s, const Place& place, Norm norm, Source from) {
  const bool has_norm = norm != Norm::kNone;
  Case c(s, place, has_norm, from);
  Case want = exact(c, has_norm, from);
  c.norm.weight_offset = want.norm.weight_offset = norm == Norm::kOnePlus ? 1 : 0;
  if (has_norm) {
    want.save();
    c.norm.raw.copy_(want.norm.raw);
    c.norm.rstd.copy_(want.norm.rstd);
  }
  const auto q = c.given.q.clone(), k = c.given.k.clone(), v = c.given.v.clone();
  qk_norm_rope_backward(c.given, c.rotation(), c.norm, c.d_qkv);
  qk_norm_rope_backward_reference(want.given, want.rotation(), want.norm, want.d_qkv);
  const int64_t M = v.size(0);
  EXPECT_TRUE(at::equal(c.v_of(c.d_qkv).narrow(0, 0, M), v));
  EXPECT_TRUE((c.d_qkv.narrow(0, M, s.N - M) == 0).all().item<bool>());
  EXPECT_TRUE(gaps_are_untouched(c.d_qkv));
  if (from != Source::kInPlace) {
    EXPECT_TRUE(at::equal(c.given.q, q) && at::equal(c.given.k, k) && at::equal(c.given.v, v));
  }
  if (M == 0) return;
  EXPECT_CLOSE(c.d_qkv, want.d_qkv, tolerance(place.dtype));
  if (!has_norm) return;
  EXPECT_CLOSE(c.norm.grad_q_weight - 7, want.norm.grad_q_weight - 7, tolerance(place.dtype));
  EXPECT_CLOSE(c.norm.grad_k_weight - 7, want.norm.grad_k_weight - 7, tolerance(place.dtype));
}

TEST_P(QkNormRope, BackwardMatchesReferenceWhereverTheGradientsLie) {
  for (const Shape& s : kShapes) {
    for (const Norm norm : kNorms) {
      for (const Source from : kSources) {
        SCOPED_TRACE(::testing::Message()
                     << "E " << s.E << " norm " << static_cast<int>(norm) << " source " << static_cast<int>(from));
        expect_backward(s, GetParam(), norm, from);
      }
    }
  }
}

TEST_P(QkNormRope, WeightGradientsAddOverManyTokens) {
  expect_backward({1100, 2, 1, 34}, GetParam(), Norm::kPlain, Source::kInPlace);
}

TEST_P(QkNormRope, GradientsElsewhereGiveTheBitsOfThoseInPlace) {
  for (const bool has_norm : {false, true}) {
    const Shape s{5, 14, 2, 64};
    Case apart(s, GetParam(), has_norm, Source::kApart), in_place(s, GetParam(), has_norm);
    in_place.given.q.copy_(apart.given.q);
    in_place.given.k.copy_(apart.given.k);
    in_place.given.v.copy_(apart.given.v);
    for (Case* c : {&apart, &in_place}) {
      qk_norm_rope_forward(c->qkv, c->rotation(), c->norm);
      qk_norm_rope_backward(c->given, c->rotation(), c->norm, c->d_qkv);
    }
    EXPECT_TRUE(at::equal(apart.d_qkv, in_place.d_qkv));
    if (has_norm) {
      EXPECT_TRUE(at::equal(apart.norm.grad_q_weight, in_place.norm.grad_q_weight));
    }
  }
}

TEST_P(QkNormRope, FrozenNormsGetNoGradient) {
  Case c(kShapes[2], GetParam(), true), trained(kShapes[2], GetParam(), true);
  for (Case* one : {&c, &trained}) qk_norm_rope_forward(one->qkv, one->rotation(), one->norm);
  c.norm.grad_q_weight = c.norm.grad_k_weight = at::Tensor();
  for (Case* one : {&c, &trained}) qk_norm_rope_backward(one->given, one->rotation(), one->norm, one->d_qkv);
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

TEST(QkNormRope, RefusesGradientsOfOtherSizes) {
  const auto refuses = [](const std::function<void(AttentionGradients&)>& change) {
    Case c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, false, Source::kApart);
    change(c.given);
    EXPECT_THROW(qk_norm_rope_backward(c.given, c.rotation(), c.norm, c.d_qkv), ShapeError);
  };
  refuses([](auto& given) { std::swap(given.q, given.k); });
  refuses([](auto& given) { given.v = given.v.narrow(0, 0, 1); });
  refuses([](auto& given) { given.k = given.k.to(at::kBFloat16); });
  refuses([](auto& given) { given.q = given.q.contiguous().transpose(0, 1).contiguous().transpose(0, 1); });
  refuses([](auto& given) {
    for (at::Tensor* t : {&given.q, &given.k, &given.v}) *t = t->repeat({2, 1, 1});
  });
}

TEST(QkNormRope, RefusesWeightsOfAnotherHeadSize) {
  Case c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, true);
  c.norm.k_weight = at::ones({8});
  EXPECT_THROW(qk_norm_rope_forward(c.qkv, c.rotation(), c.norm), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
