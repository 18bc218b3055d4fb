#include <array>
#include <cmath>
#include <functional>

#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "lora_train/kernels/rope/rope.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr double kEps = 1e-6;
// On CUDA a block takes one row or two, whole ones in registers or what is left of them (from 16384 bf16, 8192 floats on).
const std::vector<std::pair<int64_t, int64_t>> kRowSizes = {{1, 1},    {3, 7},    {5, 33},   {5, 64},   {4, 256},
                                                            {67, 129}, {2, 3584}, {1, 4104}, {1, 4101}, {2, 17000}};

constexpr double kOffsets[] = {0, 1};  ///< of the weight: Llama's and Gemma's

class RmsNorm : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(RmsNorm);

/// A shape at a place, and what autograd of ATen has for it in fp64 where nothing is added.
struct NormCase {
  NormCase(const Place& at_place, int64_t rows, int64_t D, double weight_offset)
      : place(at_place),
        offset(weight_offset),
        x(place.put(uniform({rows, D}, 1))),
        dy(place.put(uniform({rows, D}, 3))),
        w(uniform({D}, 2).to(place.options())),
        exact_x(f64(x).requires_grad_()),
        exact_w(f64(w).requires_grad_()) {
    const auto out = at::rms_norm(exact_x, {D}, exact_w + offset, kEps);
    out.backward(f64(dy));
    y = out.detach();
    rstd = (exact_x.detach().square().mean(1) + kEps).rsqrt();
  }

  void expect_forward() const {
    for (const auto& residual : {at::Tensor(), place.put(uniform(x.sizes(), 4))}) {
      auto got = place.empty(x.sizes()), got_rstd = place.statistic(rstd.sizes());
      rms_norm_forward(x, w, kEps, got, got_rstd, offset, residual);
      EXPECT_TRUE(rows_are_close(got, residual.defined() ? y + f64(residual) : y, tolerance(place.dtype)));
      // A CPU sums long rows in few lanes: 1.5e-6 for 17000 elements.
      const double of_sums = x.size(1) > 8192 ? 2 * kTightFloatTolerance : kTightFloatTolerance;
      EXPECT_CLOSE(got_rstd, rstd, std::min(of_sums, tolerance(place.dtype)));
      if (!residual.defined()) continue;
      auto in_place = residual.clone();
      rms_norm_forward(x, w, kEps, in_place, got_rstd, offset, in_place);
      EXPECT_TRUE(at::equal(in_place, got)) << "y in the place of the residual";
    }
  }

  void expect_backward() const {
    const auto given_rstd = rstd.to(place.statistic({1}).options());
    auto dx = place.empty(x.sizes()), sum = place.put(uniform(x.sizes(), 4)), both = dy.clone();
    auto dw = place.statistic(w.sizes()), dw_again = place.statistic(w.sizes());
    rms_norm_backward(dy, x, w, given_rstd, dx, /*accumulate=*/false, &dw, offset);
    EXPECT_TRUE(rows_are_close(dx, exact_x.grad(), tolerance(place.dtype)));
    EXPECT_CLOSE(dw, exact_w.grad() + 7, tolerance(place.dtype));
    const auto before = f64(sum);
    rms_norm_backward(dy, x, w, given_rstd, sum, /*accumulate=*/true, nullptr, offset);
    EXPECT_CLOSE(sum, before + exact_x.grad(), tolerance(place.dtype));
    rms_norm_backward(both, x, w, given_rstd, both, /*accumulate=*/false, &dw_again, offset);
    EXPECT_TRUE(at::equal(both, dx) && at::equal(dw_again, dw)) << "dx in the place of dy";
  }

  Place place;
  double offset;
  at::Tensor x, dy, w, exact_x, exact_w, y, rstd;
};

// In fp64 this is the reference.
TEST_P(RmsNorm, MatchesAtensAutogradAddsToAResidualAndAccumulates) {
  for (const auto& [rows, D] : kRowSizes) {
    for (const double offset : kOffsets) {
      SCOPED_TRACE(::testing::Message() << rows << "x" << D << " offset " << offset);
      const NormCase c(place, rows, D, offset);
      c.expect_forward();
      if (D > 1) c.expect_backward();  // of one column the gradient is zero but for eps
    }
  }
}

TEST(RmsNormInBf16, RoundsBeforeTheWeightAsTransformersDoesOrOnceWithAnOffset) {
  const Place place{at::kCPU, at::kBFloat16};
  const auto x = place.put(uniform({9, 129}, 1)), w = uniform({129}, 2).to(place.options());
  const auto residual = place.put(uniform({9, 129}, 3));
  auto y = place.empty({9, 129}), rstd = place.statistic({9});
  rms_norm_forward(x, w, kEps, y, rstd);
  const auto normed = x.to(at::kFloat) * rstd.unsqueeze(1);
  EXPECT_TRUE(at::equal(y, normed.to(at::kBFloat16) * w));
  rms_norm_forward(x, w, kEps, y, rstd, 1);
  const auto once = (normed * (1 + w.to(at::kFloat))).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(y, once));
  rms_norm_forward(x, w, kEps, y, rstd, 1, residual);
  EXPECT_TRUE(at::equal(y, residual + once)) << "rounded again after the residual";
}

TEST(RmsNorm, RefusesOtherShapes) {
  auto y = at::empty({2, 4}), rstd = at::empty({2});
  EXPECT_THROW(rms_norm_forward(at::ones({2, 4}), at::ones({4}), kEps, y, rstd, 0, at::ones({2, 3})), ShapeError);
  EXPECT_THROW(rms_norm_forward(at::ones({2, 4}), at::ones({5}), kEps, y, rstd), ShapeError);
}

class Rope : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Rope);

at::Tensor frequencies(int64_t R) {
  return at::pow(10000.0, at::arange(0, R, 2, at::kDouble) / static_cast<double>(-R)).to(at::kFloat);
}

RopeTable table_on(at::DeviceType device, int64_t R, int64_t num_positions, double factor) {
  return make_rope_table(frequencies(R).to(device), num_positions, factor);
}

TEST(RopeTable, HoldsCosineAndSineOfPositionTimesFrequency) {
  const auto inv_freq = frequencies(10);
  const auto table = make_rope_table(inv_freq, 50, 1.25);
  ASSERT_EQ(table.cos.sizes(), (at::IntArrayRef{50, 5}));
  for (const int64_t position : {0, 1, 7, 49}) {
    for (int64_t i = 0; i < 5; ++i) {
      const float angle = static_cast<float>(position) * inv_freq[i].item<float>();
      EXPECT_NEAR(table.cos[position][i].item<float>(), 1.25 * std::cos(angle), 2e-7);
      EXPECT_NEAR(table.sin[position][i].item<float>(), 1.25 * std::sin(angle), 2e-7);
    }
  }
}

// Pairs (i, i + R/2) as complex numbers turned by e^(i angle); the other dimensions as they are.
at::Tensor rotate_by_complex_numbers(const at::Tensor& x, const at::Tensor& positions, const RopeTable& table) {
  const int64_t half = table.cos.size(1);
  const auto pairs = at::complex(x.slice(2, 0, half), x.slice(2, half, 2 * half));
  const auto index = positions.to(at::kLong);
  const auto turn = at::complex(table.cos.to(at::kDouble), table.sin.to(at::kDouble)).index_select(0, index);
  const auto turned = pairs * turn.unsqueeze(1);
  return at::cat({at::real(turned), at::imag(turned), x.slice(2, 2 * half)}, -1);
}

TEST(RopeReference, TurnsPairsOfHalvesInFp64) {
  const auto table = table_on(at::kCPU, 10, 64, 1.0);
  const auto positions = at::tensor({0, 63, 5, 5, 17}, at::kInt);
  for (const int64_t E : {10, 16}) {
    auto x = uniform({5, 3, E}, 1, at::kDouble);
    const auto expected = rotate_by_complex_numbers(x, positions, table);
    rope_in_place_reference(x, positions, table, false);
    EXPECT_CLOSE(x, expected, 1e-14);
    EXPECT_TRUE(at::equal(x.slice(2, 10), expected.slice(2, 10)));
  }
}

TEST(RopeReference, InverseIsTheTranspose) {
  const auto table = table_on(at::kCPU, 8, 64, 1.5);  // scaled: the transpose is not the inverse
  const auto positions = at::tensor({3, 40}, at::kInt);
  const auto x = uniform({2, 3, 8}, 1, at::kDouble), dy = uniform({2, 3, 8}, 2, at::kDouble);
  const auto expected = central_differences(
      [&](const at::Tensor& values) {
        auto y = values.clone();
        rope_in_place_reference(y, positions, table, false);
        return (y * dy).sum().item<double>();
      },
      x);
  auto dx = dy.clone();
  rope_in_place_reference(dx, positions, table, true);
  EXPECT_CLOSE(dx, expected, kDifferenceTolerance);
}

TEST_P(Rope, MatchesReferenceBothWays) {
  for (const auto& [N, H, E, R] : std::vector<std::array<int64_t, 4>>{{1, 1, 2, 2},
                                                                      {3, 5, 6, 6},
                                                                      {67, 3, 34, 34},
                                                                      {9, 14, 128, 128},
                                                                      {3, 5, 6, 2},
                                                                      {67, 3, 64, 24},
                                                                      {9, 14, 256, 64}}) {
    const auto table = table_on(place.device, R, 101, 1.1), host_table = table_on(at::kCPU, R, 101, 1.1);
    const auto positions = (at::arange(N, at::kInt) * 37).remainder(101).to(at::kInt);
    for (const bool inverse : {false, true}) {
      auto x = place.put(uniform({N, H, E}, 1));
      auto expected = f64(x);
      rope_in_place_reference(expected, positions, host_table, inverse);
      const auto rest = x.slice(2, R).clone();
      rope_in_place(x, positions.to(place.device), table, inverse);
      EXPECT_TRUE(rows_are_close(x, expected, tolerance(place.dtype))) << N << " " << H << " " << E << " " << inverse;
      EXPECT_TRUE(at::equal(x.slice(2, R), rest)) << E << " " << R;
    }
  }
}

class QkNormRope : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(QkNormRope);

struct Heads {
  int64_t N, H, K, E;
  bool has_q_scale = false;
  int64_t rotary = 0;  ///< 0: E
  int64_t R() const { return rotary == 0 ? E : rotary; }
  int64_t qk() const { return (H + K) * E; }
  int64_t qkv() const { return (H + 2 * K) * E; }
};

// Heads that leave lanes of a GPU idle (80, 96), more of them than a block has groups (256), more than one pack a lane (580,
// 1056). Then heads that rotate in part: in packs, in packs of floats only, in elements, in a lane's first turn.
const std::vector<Heads> kHeads = {{1, 1, 1, 2},
                                   {3, 5, 2, 6},
                                   {17, 4, 1, 34},
                                   {5, 14, 2, 64},
                                   {2, 3, 1, 80},
                                   {3, 16, 8, 128},
                                   {3, 4, 2, 96},
                                   {2, 14, 3, 256},
                                   {2, 9, 1, 580},
                                   {1, 2, 1, 1056},
                                   {9, 4, 2, 64, true},
                                   {7, 3, 1, 34, true},
                                   {2, 14, 3, 256, false, 64},
                                   {5, 3, 2, 64, false, 24},
                                   {7, 3, 1, 34, false, 10},
                                   {1, 2, 1, 1056, false, 512}};
constexpr int64_t kPositions = 40;

/// Where the gradients of q, k and v come from.
enum class Source { kInPlace, kApart, kFewerTokens, kOnlyVInPlace };
constexpr std::array kSources = {Source::kInPlace, Source::kApart, Source::kFewerTokens, Source::kOnlyVInPlace};

/// Everything of a shape at a place; the same values at every place, rounded to its dtype.
struct RopeCase {
  RopeCase(const Heads& s, const Place& place, bool has_norm, Source from = Source::kInPlace)
      : shape(s),
        positions((at::arange(s.N, at::kInt) * 7).remainder(kPositions).to(at::kInt).to(place.device)),
        table(table_on(place.device, s.R(), kPositions, 1.0)),
        qkv(place.put(uniform({s.N, s.qkv()}, 1))),
        d_qkv(place.put(uniform({s.N, s.qkv()}, 2))) {
    if (s.has_q_scale && !has_norm) table.q_scale = (uniform({kPositions}, 8) + 2).to(place.device);
    const int64_t M = from == Source::kFewerTokens ? s.N / 2 : s.N;
    given = {d_qkv.narrow(1, 0, s.H * s.E).unflatten(1, {s.H, s.E}),
             d_qkv.narrow(1, s.H * s.E, s.K * s.E).unflatten(1, {s.K, s.E}), v_of(d_qkv)};
    if (from != Source::kInPlace) {
      given.q = place.put(uniform({M, s.H, s.E}, 3));
      given.k = place.put(uniform({M, s.K, s.E}, 6));
      if (from != Source::kOnlyVInPlace) given.v = place.put(uniform({M, s.K, s.E}, 7));
    }
    if (!has_norm) return;
    norm.q_weight = uniform({s.E}, 4).to(place.options());
    norm.k_weight = uniform({s.E}, 5).to(place.options());
    norm.eps = kEps;
    norm.raw = place.empty({s.N, s.qk()});
    norm.rstd = with_row_gaps(place.statistic({s.H + s.K, s.N}));
    norm.grad_q_weight = place.statistic({s.E});
    norm.grad_k_weight = place.statistic({s.E});
  }
  QkRotation rotation() const { return {shape.H, shape.K, shape.E, positions, table}; }
  at::Tensor v_of(const at::Tensor& wide) const {
    return wide.narrow(1, shape.qk(), shape.K * shape.E).unflatten(1, {shape.K, shape.E});
  }
  /// What the norm's forward keeps, for the values of qkv.
  void save() {
    norm.raw.copy_(qkv.narrow(1, 0, shape.qk()));
    norm.rstd.copy_((norm.raw.unflatten(1, {shape.H + shape.K, shape.E}).square().mean(2) + kEps).rsqrt().t());
  }

  Heads shape;
  at::Tensor positions;
  RopeTable table;
  at::Tensor qkv, d_qkv;
  AttentionGradients given;
  QkNorm norm;
};

const Place kExact{at::kCPU, at::kDouble};

/// The same case in fp64, with the values that rounding left.
RopeCase exact(const RopeCase& given, bool has_norm, Source from = Source::kInPlace) {
  RopeCase same(given.shape, kExact, has_norm, from);
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

/// The offset of the weight, and R of 6.
class QkNormRopeReference : public ::testing::TestWithParam<std::tuple<double, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(OffsetsAndRotarySizes, QkNormRopeReference,
                         ::testing::Combine(::testing::Values(0.0, 1.0), ::testing::Values(6, 4)));

TEST_P(QkNormRopeReference, GradientMatchesCentralDifferences) {
  const auto& [offset, R] = GetParam();
  const Heads s{3, 2, 1, 6, false, R};
  RopeCase c(s, kExact, true);
  c.norm.weight_offset = offset;
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

enum class Norm { kNone, kPlain, kOnePlus };  ///< kOnePlus: 1 + weight, as Gemma has it
constexpr std::array kNorms = {Norm::kNone, Norm::kPlain, Norm::kOnePlus};

TEST_P(QkNormRope, ForwardMatchesReference) {
  for (const Heads& s : kHeads) {
    for (const Norm norm : kNorms) {
      const bool has_norm = norm != Norm::kNone;
      RopeCase c(s, place, has_norm);
      RopeCase want = exact(c, has_norm);
      c.norm.weight_offset = want.norm.weight_offset = norm == Norm::kOnePlus ? 1 : 0;
      const auto before = c.qkv.clone();
      qk_norm_rope_forward(c.qkv, c.rotation(), c.norm);
      qk_norm_rope_forward_reference(want.qkv, want.rotation(), want.norm);
      EXPECT_TRUE(rows_are_close(c.qkv, want.qkv, tolerance(place.dtype))) << s.E << " " << s.R();
      EXPECT_TRUE(at::equal(c.qkv.narrow(1, s.qk(), s.K * s.E), before.narrow(1, s.qk(), s.K * s.E)));
      if (!has_norm) continue;
      EXPECT_TRUE(rows_are_equal(c.norm.raw, before.narrow(1, 0, s.qk())));
      const double of_rstd = std::min(kTightFloatTolerance, tolerance(place.dtype));
      EXPECT_TRUE(rows_are_close(c.norm.rstd, want.norm.rstd, of_rstd));
    }
  }
}

void expect_backward(const Heads& s, const Place& place, Norm norm, Source from) {
  const bool has_norm = norm != Norm::kNone;
  RopeCase c(s, place, has_norm, from);
  RopeCase want = exact(c, has_norm, from);
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
  for (const Heads& s : kHeads) {
    for (const Norm norm : kNorms) {
      for (const Source from : kSources) {
        SCOPED_TRACE(::testing::Message() << "E " << s.E << " R " << s.R() << " norm " << static_cast<int>(norm)
                                          << " source " << static_cast<int>(from));
        expect_backward(s, place, norm, from);
      }
    }
  }
}

TEST_P(QkNormRope, WeightGradientsAddOverManyTokens) {
  expect_backward({1100, 2, 1, 34}, place, Norm::kPlain, Source::kInPlace);
  expect_backward({1100, 2, 1, 34, false, 10}, place, Norm::kOnePlus, Source::kInPlace);
}

TEST_P(QkNormRope, GradientsElsewhereGiveTheBitsOfThoseInPlace) {
  for (const bool has_norm : {false, true}) {
    const Heads s{5, 14, 2, 64};
    RopeCase apart(s, place, has_norm, Source::kApart), in_place(s, place, has_norm);
    in_place.given.q.copy_(apart.given.q);
    in_place.given.k.copy_(apart.given.k);
    in_place.given.v.copy_(apart.given.v);
    for (RopeCase* c : {&apart, &in_place}) {
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
  RopeCase c(kHeads[2], place, true), trained(kHeads[2], place, true);
  for (RopeCase* one : {&c, &trained}) qk_norm_rope_forward(one->qkv, one->rotation(), one->norm);
  c.norm.grad_q_weight = c.norm.grad_k_weight = at::Tensor();
  for (RopeCase* one : {&c, &trained}) qk_norm_rope_backward(one->given, one->rotation(), one->norm, one->d_qkv);
  EXPECT_TRUE(at::equal(c.d_qkv, trained.d_qkv));
}

TEST(QkNormRopeOnCpu, IsNormHeadByHeadThenRope) {
  for (const auto& [dtype, R] : {std::pair(at::kFloat, 64), std::pair(at::kBFloat16, 64), std::pair(at::kFloat, 16)}) {
    const Heads s{9, 3, 2, 64, false, R};
    RopeCase c(s, {at::kCPU, dtype}, true);
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

TEST(QkNormRope, RefusesAScaleOfTheQueriesWithANormOrPartOfAHead) {
  RopeCase c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, true), part({2, 2, 1, 6, false, 4}, {at::kCPU, at::kFloat}, false);
  c.table.q_scale = part.table.q_scale = at::ones({kPositions});
  EXPECT_THROW(qk_norm_rope_forward(c.qkv, c.rotation(), c.norm), ShapeError);
  EXPECT_THROW(qk_norm_rope_forward(part.qkv, part.rotation(), part.norm), ShapeError);
}

TEST(QkNormRope, RefusesGradientsOfOtherSizes) {
  const auto refuses = [](const std::function<void(AttentionGradients&)>& change) {
    RopeCase c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, false, Source::kApart);
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

TEST(Rope, RefusesOtherHeadSizes) {
  RopeCase c({2, 2, 1, 6}, {at::kCPU, at::kFloat}, true);
  c.norm.k_weight = at::ones({8});
  EXPECT_THROW(qk_norm_rope_forward(c.qkv, c.rotation(), c.norm), ShapeError);
  for (const int64_t E : {4, 7}) {
    auto x = at::ones({2, 1, E});
    EXPECT_THROW(rope_in_place(x, at::zeros({2}, at::kInt), table_on(at::kCPU, 6, 4, 1), false), ShapeError) << E;
  }
  RopeCase wide({2, 2, 1, 6}, {at::kCPU, at::kFloat}, false);
  wide.table = table_on(at::kCPU, 8, kPositions, 1);
  EXPECT_THROW(qk_norm_rope_forward(wide.qkv, wide.rotation(), wide.norm), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
