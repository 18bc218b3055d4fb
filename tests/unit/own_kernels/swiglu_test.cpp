#include "kernels/swiglu_cuda.h"

#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t num_rows, F, gap;  ///< gap: of y and dy
  bool is_aligned;
};

// Odd widths, one block and several a row, ends inside a thread's second pack, gaps, misaligned rows.
const std::vector<Shape> kShapes = {{1, 1, 0, true},    {3, 7, 1, true},     {5, 64, 8, true},   {2, 520, 0, false},
                                    {2, 4864, 16, true}, {2, 4104, 3, true}, {1, 1031, 5, false}, {3, 264, 8, true}};

template <class T>
class SwigluOnCpu : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(SwigluOnCpu, Elements);

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Gates between -8 and 8, ups between -1 and 1.
template <class T>
void fill_gate_up(Guarded<T>& gate_up, std::int64_t F) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  gate_up.fill([&](auto, auto f) { return uniform(generator) * (f < F ? 8.0F : 1.0F); });
}

TYPED_TEST(SwigluOnCpu, Forward) {
  for (const auto& [rows, F, gap, is_aligned] : kShapes) {
    Guarded<TypeParam> gate_up(rows, 2 * F, 0, is_aligned), y(rows, F, gap, is_aligned);
    fill_gate_up(gate_up, F);
    const std::int64_t width = F;
    run_in_both_orders(y, [&] { swiglu_forward_cuda(gate_up.read(), y.rows(), rows, width, nullptr); });
    const auto want = [&](std::int64_t n, std::int64_t f) {
      const double gate = gate_up.at(n, f);
      return gate * sigmoid(gate) * gate_up.at(n, width + f);
    };
    EXPECT_TRUE(is_near(y, rows, F, want, element_tolerance<TypeParam>())) << rows << " x " << F;
    EXPECT_TRUE(y.is_intact() && gate_up.is_intact());
  }
}

TYPED_TEST(SwigluOnCpu, BackwardBesideAndInPlace) {
  for (const auto& [rows, F, gap, is_aligned] : kShapes) {
    Guarded<TypeParam> gate_up(rows, 2 * F, 0, is_aligned), dy(rows, F, gap, is_aligned), d(rows, 2 * F, 0, is_aligned);
    fill_gate_up(gate_up, F);
    dy.fill_uniform(2);
    const std::int64_t width = F;
    const auto run = [&](Guarded<TypeParam>& to) {
      swiglu_backward_cuda(dy.read(), gate_up.read(), to.rows(), rows, width, nullptr);
    };
    run_in_both_orders(d, [&] { run(d); });
    const auto want = [&](std::int64_t n, std::int64_t column) {
      const double gate = gate_up.at(n, column % width), up = gate_up.at(n, width + column % width);
      const double s = sigmoid(gate), gradient = dy.at(n, column % width);
      return column < width ? gradient * up * s * (1 + gate * (1 - s)) : gradient * gate * s;
    };
    EXPECT_TRUE(is_near(d, rows, 2 * F, want, element_tolerance<TypeParam>())) << rows << " x " << F;
    run(gate_up);
    EXPECT_EQ(0, std::memcmp(gate_up.values().data(), d.values().data(), d.values().size() * sizeof(TypeParam)));
    EXPECT_TRUE(d.is_intact() && gate_up.is_intact());
  }
}

TYPED_TEST(SwigluOnCpu, NothingToDoLaunchesNothing) {
  Guarded<TypeParam> gate_up(1, 8), y(1, 4);
  const auto before = on_cpu::num_launches();
  swiglu_forward_cuda(gate_up.read(), y.rows(), 0, 4, nullptr);
  swiglu_forward_cuda(gate_up.read(), y.rows(), 1, 0, nullptr);
  swiglu_backward_cuda(y.read(), gate_up.read(), gate_up.rows(), 1, 0, nullptr);
  EXPECT_EQ(on_cpu::num_launches(), before);
}

}  // namespace
}  // namespace lora_train::kernels
