#include <cstring>

#include "kernels/rope/rope_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;
constexpr std::int64_t kPositions = 23;

struct Shape {
  std::int64_t num_tokens, num_q, num_k, E, gap;
  bool is_aligned;
};

// Head sizes that take one lane and a whole warp, that leave lanes idle (80, 96), and that are more than one pack a lane
// (580, 1056); more heads than a block has groups; odd ones, gaps, misaligned rows.
const std::vector<Shape> kShapes = {{1, 1, 1, 2, 0, true},     {3, 5, 2, 6, 1, true},   {4, 14, 2, 64, 8, true},
                                    {2, 28, 4, 128, 16, true}, {2, 3, 1, 80, 8, false}, {3, 4, 2, 96, 8, true},
                                    {2, 2, 1, 256, 0, true},   {2, 9, 1, 580, 1, true}, {1, 2, 1, 1056, 8, true},
                                    {3, 3, 2, 64, 1, true}};

std::int64_t position_of(std::int64_t n) { return (n * 7 + 3) % kPositions; }

struct Tables {
  explicit Tables(const Shape& shape, double factor = 1.0)
      : half(shape.E / 2), positions(1, shape.num_tokens), cos(kPositions, half), sin(kPositions, half) {
    positions.fill([](auto, auto n) { return static_cast<float>(position_of(n)); });
    cos.fill([&](auto p, auto i) { return static_cast<float>(factor * std::cos(angle(p, i))); });
    sin.fill([&](auto p, auto i) { return static_cast<float>(factor * std::sin(angle(p, i))); });
  }
  double angle(std::int64_t position, std::int64_t i) const {
    return static_cast<double>(position) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
  }
  RotationTable table() { return {positions.data(), cos.read(), sin.read()}; }
  /// Element e of a head turned by `direction`, given the head's elements.
  double turned(std::int64_t n, std::int64_t e, double direction, const std::function<double(std::int64_t)>& head) {
    const std::int64_t i = e % half, p = position_of(n);
    const double c = cos.at(p, i), s = sin.at(p, i) * direction, a = head(i), b = head(half + i);
    return e < half ? a * c - b * s : b * c + a * s;
  }

  std::int64_t half;
  Guarded<std::int32_t> positions;
  Guarded<float> cos, sin;
};

std::int64_t width_of(const Shape& s) { return (s.num_q + s.num_k) * s.E; }

template <class T>
class RopeCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RopeCuda, Elements);

TYPED_TEST(RopeCuda, TurnsBothWays) {
  for (const Shape& s : kShapes) {
    Tables tables(s, 1.25);
    const HeadCounts heads{s.num_q, s.num_k, s.E};
    Guarded<TypeParam> x(s.num_tokens, width_of(s), s.gap, s.is_aligned);
    Guarded<TypeParam> y(s.num_tokens, width_of(s), s.gap, s.is_aligned);
    x.fill_uniform(1);
    for (const bool inverse : {false, true}) {
      run_in_both_orders(y, [&] {
        y.fill([&](auto n, auto c) { return static_cast<float>(x.at(n, c)); });
        rope_cuda(y.rows(), tables.table(), inverse, s.num_tokens, heads, nullptr);
      });
      const auto want = [&](std::int64_t n, std::int64_t c) {
        const auto head = [&](std::int64_t e) { return x.at(n, c / s.E * s.E + e); };
        return tables.turned(n, c % s.E, inverse ? -1 : 1, head);
      };
      EXPECT_TRUE(is_near(y, s.num_tokens, width_of(s), want, element_tolerance<TypeParam>())) << s.E << inverse;
    }
    EXPECT_TRUE(y.is_intact());
  }
}

/// Values and weights of a norm over heads, and what it makes of them.
template <class T>
struct Norm {
  explicit Norm(const Shape& shape, float weight_offset = 0)
      : s(shape),
        offset(weight_offset),
        x(s.num_tokens, width_of(s), s.gap, s.is_aligned),
        q(1, s.E, 0, s.is_aligned),
        k(1, s.E, 0, s.is_aligned),
        rstd(s.num_q + s.num_k, s.num_tokens, 2) {
    x.fill_uniform(1);
    q.fill_uniform(2);
    k.fill_uniform(3);
  }
  double weight(std::int64_t head, std::int64_t e) {
    return static_cast<double>(offset) + (head < s.num_q ? q.at(0, e) : k.at(0, e));
  }
  double scale(std::int64_t n, std::int64_t head) {
    double sum = 0;
    for (std::int64_t e = 0; e < s.E; ++e) sum += x.at(n, head * s.E + e) * x.at(n, head * s.E + e);
    return 1.0 / std::sqrt(sum / static_cast<double>(s.E) + static_cast<double>(kEps));
  }
  HeadCounts heads() const { return {s.num_q, s.num_k, s.E}; }
  QkNormWeights<T> weights() { return {q.data(), k.data(), offset}; }

  Shape s;
  float offset;
  Guarded<T> x, q, k;
  Guarded<float> rstd;
};

template <class T>
void expect_norm_and_turn(const Shape& s, float offset) {
  Tables tables(s);
  Norm<T> norm(s, offset);
  Guarded<T> y(s.num_tokens, width_of(s), s.gap, s.is_aligned);
  Guarded<T> raw(s.num_tokens, width_of(s), 8, s.is_aligned);
  run_in_both_orders(y, [&] {
    y.fill([&](auto n, auto c) { return static_cast<float>(norm.x.at(n, c)); });
    raw.poison_values();
    norm.rstd.poison_values();
    qk_norm_rope_forward_cuda(y.rows(), tables.table(), norm.weights(), kEps, raw.rows(), norm.rstd.rows(),
                              s.num_tokens, norm.heads(), nullptr);
  });
  const auto want = [&](std::int64_t n, std::int64_t c) {
    const std::int64_t head = c / s.E;
    const double scale = norm.rstd.at(head, n);
    return tables.turned(n, c % s.E, 1,
                         [&](std::int64_t e) { return norm.x.at(n, head * s.E + e) * scale * norm.weight(head, e); });
  };
  EXPECT_TRUE(is_near(
      norm.rstd, s.num_q + s.num_k, s.num_tokens, [&](auto head, auto n) { return norm.scale(n, head); }, 1e-5));
  EXPECT_TRUE(is_near(y, s.num_tokens, width_of(s), want, element_tolerance<T>())) << s.E;
  EXPECT_TRUE(is_near(
      raw, s.num_tokens, width_of(s), [&](auto n, auto c) { return norm.x.at(n, c); }, 0));
  EXPECT_TRUE(y.is_intact() && raw.is_intact() && norm.rstd.is_intact());
}

TYPED_TEST(RopeCuda, NormsAndTurns) {
  for (const Shape& s : kShapes) {
    for (const float offset : {0.0F, 1.0F}) expect_norm_and_turn<TypeParam>(s, offset);
  }
}

/// Gradients of q, k and v, each with a gap of its own, and d_qkv of `more` tokens more.
template <class T>
struct Gradients {
  Gradients(const Shape& shape, std::int64_t more = 0)
      : s(shape),
        q(s.num_tokens, s.num_q * s.E, s.gap, s.is_aligned),
        k(s.num_tokens, s.num_k * s.E, 2 * s.gap, s.is_aligned),
        v(s.num_tokens, s.num_k * s.E, 3 * s.gap, s.is_aligned),
        dx(s.num_tokens + more, width_of(s) + s.num_k * s.E, s.gap, s.is_aligned) {
    q.fill_uniform(4);
    k.fill_uniform(5);
    v.fill_uniform(6);
  }
  QkvGradients<T> apart() { return {q.read(), k.read(), v.read(), s.num_tokens}; }
  /// Brings them into dx.
  QkvGradients<T> in_place() {
    dx.fill([&](auto n, auto c) { return static_cast<float>(c < width_of(s) ? at(n, c) : v.at(n, c - width_of(s))); });
    const Rows<const T> rows = dx.read();
    return {rows, {rows.data + s.num_q * s.E, rows.stride}, {nullptr, 0}, s.num_tokens};
  }
  /// Column c of q and k.
  double at(std::int64_t n, std::int64_t c) { return c < s.num_q * s.E ? q.at(n, c) : k.at(n, c - s.num_q * s.E); }
  /// dx holds `want` in the columns of q and k, v, and zeros behind the last token.
  void expect(const std::function<double(std::int64_t, std::int64_t)>& want, double tolerance) {
    EXPECT_TRUE(is_near(dx, s.num_tokens, width_of(s), want, tolerance)) << s.E;
    for (std::int64_t n = 0; n < dx.num_rows(); ++n) {
      for (std::int64_t c = n < s.num_tokens ? width_of(s) : 0; c < width_of(s) + s.num_k * s.E; ++c) {
        ASSERT_EQ(dx.at(n, c), n < s.num_tokens ? v.at(n, c - width_of(s)) : 0) << "row " << n << ", column " << c;
      }
    }
    EXPECT_TRUE(q.is_intact() && k.is_intact() && v.is_intact() && dx.is_intact());
  }

  Shape s;
  Guarded<T> q, k, v, dx;
};

TYPED_TEST(RopeCuda, TurnsBackFromWhereTheGradientsLie) {
  for (const Shape& s : kShapes) {
    Tables tables(s, 1.25);
    Gradients<TypeParam> d(s, 2);
    const auto run = [&](const QkvGradients<TypeParam>& from, std::int64_t num_tokens) {
      rope_backward_cuda(from, tables.table(), d.dx.rows(), num_tokens, {s.num_q, s.num_k, s.E}, nullptr);
    };
    const auto want = [&](std::int64_t n, std::int64_t c) {
      return tables.turned(n, c % s.E, -1, [&](std::int64_t e) { return d.at(n, c / s.E * s.E + e); });
    };
    run_in_both_orders(d.dx, [&] { run(d.apart(), s.num_tokens + 2); });
    d.expect(want, element_tolerance<TypeParam>());
    const auto first = d.dx.values();
    Gradients<TypeParam> same(s);
    run_in_both_orders(same.dx, [&] {
      const auto from = same.in_place();
      rope_backward_cuda(from, tables.table(), same.dx.rows(), s.num_tokens, {s.num_q, s.num_k, s.E}, nullptr);
    });
    const auto second = same.dx.values();
    EXPECT_EQ(std::memcmp(first.data(), second.data(), second.size() * sizeof(TypeParam)), 0) << s.E;
  }
}

template <class T>
void expect_backward(const Shape& s, float offset) {
  Tables tables(s);
  Norm<T> norm(s, offset);
  norm.rstd.fill([&](auto head, auto n) { return static_cast<float>(norm.scale(n, head)); });
  Gradients<T> d(s, 2), same(s);
  const auto run = [&](Gradients<T>& to, const QkvGradients<T>& from, std::int64_t num_tokens) {
    qk_norm_rope_backward_cuda(from, norm.x.read(), norm.rstd.read(), tables.table(), norm.weights(), to.dx.rows(),
                               num_tokens, norm.heads(), nullptr);
  };
  const auto back = [&](std::int64_t n, std::int64_t c) {
    return tables.turned(n, c % s.E, -1, [&](std::int64_t e) { return d.at(n, c / s.E * s.E + e); });
  };
  std::vector<double> along(static_cast<std::size_t>(s.num_tokens * (s.num_q + s.num_k)));
  const auto along_x = [&](std::int64_t n, std::int64_t head) -> double& {
    return along[static_cast<std::size_t>(n * (s.num_q + s.num_k) + head)];
  };
  for (std::int64_t i = 0; i < s.num_tokens * width_of(s); ++i) {
    const std::int64_t n = i / width_of(s), c = i % width_of(s);
    along_x(n, c / s.E) += back(n, c) * norm.weight(c / s.E, c % s.E) * norm.x.at(n, c) / static_cast<double>(s.E);
  }
  const auto want = [&](std::int64_t n, std::int64_t c) {
    const std::int64_t head = c / s.E;
    const double r = norm.rstd.at(head, n);
    return r * (back(n, c) * norm.weight(head, c % s.E) - norm.x.at(n, c) * r * r * along_x(n, head));
  };
  run_in_both_orders(d.dx, [&] { run(d, d.apart(), s.num_tokens + 2); });
  d.expect(want, 3 * element_tolerance<T>());
  run_in_both_orders(same.dx, [&] { run(same, same.in_place(), s.num_tokens); });
  const auto first = d.dx.values(), second = same.dx.values();
  EXPECT_EQ(std::memcmp(first.data(), second.data(), second.size() * sizeof(T)), 0) << s.E;
}

TYPED_TEST(RopeCuda, BackwardThroughTurnAndNorm) {
  for (const Shape& s : kShapes) {
    for (const float offset : {0.0F, 1.0F}) expect_backward<TypeParam>(s, offset);
  }
}

TYPED_TEST(RopeCuda, WeightGradientsAddOverTokensAndHeads) {
  for (const Shape& s : {Shape{1, 1, 1, 2, 0, true}, Shape{37, 3, 2, 10, 1, true}, Shape{1100, 2, 1, 34, 3, false}}) {
    Norm<TypeParam> norm(s);
    Tables tables(s);
    Gradients<TypeParam> d(s);
    Guarded<float> dq(1, s.E), dk(1, s.E), workspace(1, qk_norm_workspace(s.E));
    norm.rstd.fill([](auto head, auto n) { return 0.5F + static_cast<float>((head + n) % 4); });
    const auto run = [&](float* to_q, float* to_k) {
      workspace.poison_values();
      dq.fill([](auto, auto) { return 7.0F; });
      qk_norm_weight_gradient_cuda(d.apart(), norm.x.read(), norm.rstd.read(), tables.table(), to_q, to_k,
                                   workspace.data(), norm.heads(), nullptr);
    };
    const auto sum = [&](std::int64_t first_head, std::int64_t end_head, std::int64_t e) {
      double total = 0;
      for (std::int64_t n = 0; n < s.num_tokens; ++n) {
        for (std::int64_t head = first_head; head < end_head; ++head) {
          const double turned = tables.turned(n, e, -1, [&](std::int64_t i) { return d.at(n, head * s.E + i); });
          total += turned * norm.x.at(n, head * s.E + e) * norm.rstd.at(head, n);
        }
      }
      return total;
    };
    dk.fill([](auto, auto) { return 5.0F; });
    run_in_both_orders(dq, [&] { run(dq.data(), nullptr); });
    EXPECT_TRUE(is_near(
        dk, 1, s.E, [](auto, auto) { return 5.0; }, 0));
    run(dq.data(), dk.data());
    EXPECT_TRUE(is_near(
        dq, 1, s.E, [&](auto, auto e) { return 7 + sum(0, s.num_q, e); }, element_tolerance<TypeParam>()));
    EXPECT_TRUE(is_near(
        dk, 1, s.E, [&](auto, auto e) { return 5 + sum(s.num_q, s.num_q + s.num_k, e); },
        element_tolerance<TypeParam>()));
    EXPECT_TRUE(dq.is_intact() && dk.is_intact() && workspace.is_intact());
  }
}

}  // namespace
}  // namespace lora_train::kernels
