#include "kernels/gated_activation/gated_activation_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t num_rows, F, gap;  ///< gap: between rows
  bool is_aligned;
};

// Odd widths, one block and several a row, ends inside a thread's second pack, gaps, misaligned rows.
const std::vector<Shape> kShapes = {{1, 1, 0, true},     {3, 7, 1, true},    {5, 64, 8, true},    {2, 520, 0, false},
                                    {2, 4864, 16, true}, {2, 4104, 3, true}, {1, 1031, 5, false}, {3, 264, 8, true}};

template <class T>
class GatedActivationCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(GatedActivationCuda, Elements);

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh};
constexpr double kTanhScale = 0.7978845608028654, kCubic = 0.044715;  // sqrt(2 / pi)

double tanh_of(double x) { return std::tanh(kTanhScale * (x + kCubic * x * x * x)); }

double value_of(Activation activation, double x) {
  return activation == Activation::kSilu ? x / (1 + std::exp(-x)) : 0.5 * x * (1 + tanh_of(x));
}

double slope_of(Activation activation, double x) {
  if (activation == Activation::kSilu) {
    const double s = 1 / (1 + std::exp(-x));
    return s * (1 + x * (1 - s));
  }
  const double t = tanh_of(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kTanhScale * (1 + 3 * kCubic * x * x);
}

/// Gates between -8 and 8, ups between -1 and 1.
template <class T>
void fill_gate_up(Guarded<T>& gate_up, std::int64_t F) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  gate_up.fill([&](auto, auto f) { return uniform(generator) * (f < F ? 8.0F : 1.0F); });
}

TYPED_TEST(GatedActivationCuda, Forward) {
  for (const auto& [rows, F, gap, is_aligned] : kShapes) {
    for (const Activation activation : kActivations) {
      Guarded<TypeParam> gate_up(rows, 2 * F, gap, is_aligned), y(rows, F, gap, is_aligned);
      fill_gate_up(gate_up, F);
      const std::int64_t num_rows = rows, width = F;
      run_in_both_orders(
          y, [&] { gated_activation_forward_cuda(gate_up.read(), y.rows(), num_rows, width, activation, nullptr); });
      const auto want = [&](std::int64_t n, std::int64_t f) {
        return value_of(activation, gate_up.at(n, f)) * gate_up.at(n, width + f);
      };
      EXPECT_TRUE(is_near(y, rows, F, want, element_tolerance<TypeParam>())) << rows << " x " << F;
      EXPECT_TRUE(y.is_intact() && gate_up.is_intact());
    }
  }
}

TYPED_TEST(GatedActivationCuda, BackwardBesideAndInPlace) {
  for (const auto& [rows, F, gap, is_aligned] : kShapes) {
    for (const Activation activation : kActivations) {
      Guarded<TypeParam> gate_up(rows, 2 * F, gap, is_aligned), dy(rows, F, gap, is_aligned),
          d(rows, 2 * F, gap, is_aligned);
      fill_gate_up(gate_up, F);
      dy.fill_uniform(2);
      const std::int64_t num_rows = rows, width = F;
      const auto run = [&](Guarded<TypeParam>& to) {
        gated_activation_backward_cuda(dy.read(), gate_up.read(), to.rows(), num_rows, width, activation, nullptr);
      };
      run_in_both_orders(d, [&] { run(d); });
      const auto want = [&](std::int64_t n, std::int64_t column) {
        const double gate = gate_up.at(n, column % width), up = gate_up.at(n, width + column % width);
        const double gradient = dy.at(n, column % width);
        return column < width ? gradient * up * slope_of(activation, gate) : gradient * value_of(activation, gate);
      };
      EXPECT_TRUE(is_near(d, rows, 2 * F, want, element_tolerance<TypeParam>())) << rows << " x " << F;
      run(gate_up);
      EXPECT_EQ(0, std::memcmp(gate_up.values().data(), d.values().data(), d.values().size() * sizeof(TypeParam)));
      EXPECT_TRUE(d.is_intact() && gate_up.is_intact());
    }
  }
}

TYPED_TEST(GatedActivationCuda, NothingToDoLaunchesNothing) {
  Guarded<TypeParam> gate_up(1, 8), y(1, 4);
  const auto before = num_launches();
  gated_activation_forward_cuda(gate_up.read(), y.rows(), 0, 4, Activation::kSilu, nullptr);
  gated_activation_forward_cuda(gate_up.read(), y.rows(), 1, 0, Activation::kSilu, nullptr);
  gated_activation_backward_cuda(y.read(), gate_up.read(), gate_up.rows(), 1, 0, Activation::kSilu, nullptr);
  EXPECT_EQ(num_launches(), before);
}

}  // namespace
}  // namespace lora_train::kernels
