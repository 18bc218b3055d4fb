// Numbers: norm_rope_test.cpp of kernels_test.
#include "kernels/rope/rope_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;
constexpr std::int64_t kPositions = 23;

struct Shape {
  std::int64_t num_tokens, num_q, num_k, E, gap = 0;
  bool is_aligned = true;
  std::int64_t rotary = 0;  ///< 0: E

  std::int64_t R() const { return rotary == 0 ? E : rotary; }
  std::int64_t qk() const { return (num_q + num_k) * E; }
  HeadCounts heads() const { return {num_q, num_k, E, R()}; }
  RowShape rows(std::int64_t width, std::int64_t more = 0) const { return {num_tokens + more, width, gap, is_aligned}; }
};

// Head sizes that take one lane and a whole warp, that leave lanes idle (80, 96), and that are more than one pack a lane
// (580, 1056); more heads than a block has groups; odd ones, gaps, misaligned rows; many tokens. Then heads that
// rotate in part: in packs, in packs of floats only, in elements, in the first turn of every lane, in misaligned rows.
const std::vector<Shape> kShapes = {{0, 1, 1, 8},
                                    {2, 14, 3, 256},
                                    {4, 14, 2, 64, 8},
                                    {2, 28, 4, 128, 16},
                                    {1, 1, 1, 2},
                                    {3, 4, 2, 96, 8},
                                    {2, 9, 1, 580, 1},
                                    {2, 3, 1, 80, 8, false},
                                    {3, 5, 2, 6, 1},
                                    {3, 3, 2, 64, 1},
                                    {1, 2, 1, 1056, 8},
                                    {1100, 1, 1, 2, 3, false},
                                    {2, 5, 2, 256, 8, true, 64},
                                    {3, 3, 2, 64, 8, true, 24},
                                    {2, 3, 1, 34, 1, true, 10},
                                    {1, 2, 1, 1056, 8, true, 512},
                                    {2, 3, 1, 256, 0, false, 64}};

/// Two tokens have no gradients.
template <class T>
struct Buffers {
  static constexpr std::int64_t kMore = 2;

  explicit Buffers(const Shape& shape)
      : s(shape),
        positions(1, s.num_tokens),
        cos(kPositions, s.R() / 2),
        sin(kPositions, s.R() / 2),
        q_scale(1, kPositions),
        rstd(s.num_q + s.num_k, s.num_tokens, 2),
        x(s.rows(s.qk())),
        raw(s.num_tokens, s.qk(), 8),
        q(s.rows(s.num_q * s.E)),
        k(s.rows(s.num_k * s.E)),
        v(s.rows(s.num_k * s.E)),
        dx(s.rows(s.qk() + s.num_k * s.E, kMore)),
        q_weight(1, s.E, 0, s.is_aligned),
        k_weight(1, s.E, 0, s.is_aligned) {
    positions.fill([](auto, auto n) { return static_cast<float>((n * 7 + 3) % kPositions); });
    cos.fill_uniform(1);
    sin.fill_uniform(2);
    q_scale.fill_uniform(7);
    for (auto* values : {&q, &k, &v, &q_weight, &k_weight}) values->fill_uniform(3);
  }
  RotationTable table() { return {positions.data(), cos.read(), sin.read(), s.R() < s.E ? nullptr : q_scale.data()}; }
  QkNormWeights<T> weights() { return {q_weight.data(), k_weight.data()}; }
  QkvGradients<T> apart() { return {q.read(), k.read(), v.read(), s.num_tokens}; }
  /// In dx, where v is.
  QkvGradients<T> in_place() {
    dx.fill_uniform(4);
    return {dx.read(), {dx.data() + s.num_q * s.E, dx.read().stride}, {nullptr, 0}, s.num_tokens};
  }

  void expect_forward() {
    for (const bool inverse : {false, true}) {
      const auto turn = [&] {
        x.fill_uniform(5);
        rope_cuda(x.rows(), table(), inverse, s.num_tokens, s.heads(), nullptr);
      };
      expect_guarded(turn, {&x}, {&positions, &cos, &sin, &q_scale});
    }
    const auto norm_and_turn = [&] {
      x.fill_uniform(5);
      qk_norm_rope_forward_cuda(x.rows(), table(), weights(), kEps, raw.rows(), rstd.rows(), s.num_tokens, s.heads(),
                                nullptr);
    };
    expect_guarded(norm_and_turn, {&x, &raw, &rstd}, {&positions, &cos, &sin, &q_scale, &q_weight, &k_weight});
  }
  void expect_backward() {
    const std::int64_t all = s.num_tokens + kMore;
    const auto turn = [&](const QkvGradients<T>& d, std::int64_t num_tokens) {
      rope_backward_cuda(d, table(), dx.rows(), num_tokens, s.heads(), nullptr);
    };
    const auto through_norm = [&](const QkvGradients<T>& d, std::int64_t num_tokens) {
      qk_norm_rope_backward_cuda(d, raw.read(), rstd.read(), table(), weights(), dx.rows(), num_tokens, s.heads(),
                                 nullptr);
    };
    const std::vector<GuardedBytes*> inputs = {&positions, &cos, &sin,  &q_scale,  &q,       &k,
                                               &v,         &raw, &rstd, &q_weight, &k_weight};
    expect_guarded([&] { turn(apart(), all); }, {&dx}, inputs);
    expect_guarded([&] { turn(in_place(), s.num_tokens); }, {&dx}, inputs);
    expect_guarded([&] { through_norm(apart(), all); }, {&dx}, inputs);
    expect_guarded([&] { through_norm(in_place(), s.num_tokens); }, {&dx}, inputs);
  }
  void expect_weight_gradients() {
    Guarded<float> dq(1, s.E), dk(1, s.E), workspace(1, qk_norm_workspace(s.E));
    for (const bool has_k : {false, true}) {
      const auto launch = [&] {
        workspace.poison_values();
        for (auto* to : {&dq, &dk}) to->fill_uniform(6);
        qk_norm_weight_gradient_cuda(apart(), raw.read(), rstd.read(), table(), dq.data(), has_k ? dk.data() : nullptr,
                                     workspace.data(), s.heads(), nullptr);
      };
      expect_guarded(launch, {&dq, &dk}, {&positions, &cos, &sin, &q_scale, &q, &k, &raw, &rstd});
      EXPECT_TRUE(workspace.is_intact());
    }
  }

  Shape s;
  Guarded<std::int32_t> positions;
  Guarded<float> cos, sin, q_scale, rstd;
  Guarded<T> x, raw, q, k, v, dx, q_weight, k_weight;
};

TEST(RopeCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(::testing::Message() << "E " << s.E << " R " << s.R());
      Buffers<T> buffers(s);
      buffers.expect_forward();  // raw and rstd are needed by the others
      buffers.expect_backward();
      buffers.expect_weight_gradients();
    }
  });
}

}  // namespace
}  // namespace lora_train::kernels
