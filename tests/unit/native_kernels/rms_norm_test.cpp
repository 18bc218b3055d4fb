#include "kernels/rms_norm/rms_norm_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;

struct Shape {
  std::int64_t num_rows, D, gap;
  bool is_aligned;
};

// Odd sizes, rows longer than a block keeps in registers (16384 bf16, 8192 floats), gaps, misaligned rows.
const std::vector<Shape> kShapes = {{1, 1, 0, true},     {3, 7, 1, true},     {5, 64, 8, true},   {2, 520, 0, false},
                                    {2, 3584, 48, true}, {1, 20000, 0, true}, {1, 4100, 3, true}, {2, 17000, 8, true}};

template <class T>
class RmsNormCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RmsNormCuda, Elements);

template <class T>
double rstd_of(Guarded<T>& x, std::int64_t n, std::int64_t D) {
  double sum = 0;
  for (std::int64_t d = 0; d < D; ++d) sum += x.at(n, d) * x.at(n, d);
  return 1.0 / std::sqrt(sum / static_cast<double>(D) + static_cast<double>(kEps));
}

TYPED_TEST(RmsNormCuda, Forward) {
  for (const auto& [rows, D, gap, is_aligned] : kShapes) {
    Guarded<TypeParam> x(rows, D, gap, is_aligned), y(rows, D, gap, is_aligned), w(1, D, 0, is_aligned);
    Guarded<TypeParam> residual(rows, D, gap, is_aligned);
    Guarded<float> rstd(1, rows);
    x.fill_uniform(1);
    w.fill_uniform(2);
    const std::int64_t num_rows = rows, width = D;
    std::vector<double> scale;
    for (std::int64_t n = 0; n < rows; ++n) scale.push_back(rstd_of(x, n, D));
    residual.fill_uniform(3);
    for (const float offset : {0.0F, 1.0F}) {
      for (const bool adds : {false, true}) {
        run_in_both_orders(y, [&] {
          rms_norm_forward_cuda(x.read(), {w.data(), offset}, kEps, adds ? residual.read() : Rows<const TypeParam>{},
                                y.rows(), rstd.data(), num_rows, width, nullptr);
        });
        const auto want = [&](std::int64_t n, std::int64_t d) {
          const double normed = x.at(n, d) * scale[static_cast<std::size_t>(n)];
          return normed * (static_cast<double>(offset) + w.at(0, d)) + (adds ? residual.at(n, d) : 0);
        };
        EXPECT_TRUE(is_near(y, rows, D, want, element_tolerance<TypeParam>())) << rows << " x " << D << adds << offset;
        EXPECT_TRUE(is_near(
            rstd, 1, rows, [&](auto, auto n) { return rstd_of(x, n, width); }, 1e-5));
        EXPECT_TRUE(y.is_intact() && rstd.is_intact());
      }
    }
  }
}

template <class T>
void expect_backward(const Shape& shape, float offset) {
  const std::int64_t rows = shape.num_rows, D = shape.D, gap = shape.gap;
  const bool is_aligned = shape.is_aligned;
  Guarded<T> x(rows, D, gap, is_aligned), dy(rows, D, gap, is_aligned), dx(rows, D, gap, is_aligned);
  Guarded<T> w(1, D, 0, is_aligned), sum(rows, D, gap, is_aligned);
  Guarded<float> rstd(1, rows);
  x.fill_uniform(1);
  w.fill_uniform(2);
  dy.fill_uniform(3);
  sum.fill([](auto, auto d) { return static_cast<float>(d % 3); });
  rstd.fill([&](auto, auto n) { return static_cast<float>(rstd_of(x, n, D)); });
  const auto weight = [&](std::int64_t d) { return static_cast<double>(offset) + w.at(0, d); };
  std::vector<double> along(static_cast<std::size_t>(rows));
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t d = 0; d < D; ++d) {
      along[static_cast<std::size_t>(n)] += dy.at(n, d) * weight(d) * x.at(n, d) / static_cast<double>(D);
    }
  }
  const auto want = [&](std::int64_t n, std::int64_t d) {
    const double r = rstd.at(0, n);
    return r * (dy.at(n, d) * weight(d) - x.at(n, d) * r * r * along[static_cast<std::size_t>(n)]);
  };
  const auto run = [&](Guarded<T>& to, bool accumulate) {
    rms_norm_backward_cuda(dy.read(), x.read(), {w.data(), offset}, rstd.data(), to.rows(), accumulate, rows, D,
                           nullptr);
  };
  run_in_both_orders(dx, [&] { run(dx, false); });
  EXPECT_TRUE(is_near(dx, rows, D, want, element_tolerance<T>())) << rows << " x " << D << " offset " << offset;
  run(sum, true);
  EXPECT_TRUE(is_near(
      sum, rows, D, [&](auto n, auto d) { return want(n, d) + static_cast<double>(d % 3); }, element_tolerance<T>()));
  EXPECT_TRUE(dx.is_intact() && sum.is_intact());
}

TYPED_TEST(RmsNormCuda, BackwardWritesAndAccumulates) {
  for (const Shape& shape : kShapes) {
    if (shape.D == 1) continue;  // its gradient is zero but for eps
    for (const float offset : {0.0F, 1.0F}) expect_backward<TypeParam>(shape, offset);
  }
}

TYPED_TEST(RmsNormCuda, WeightGradientAddsOverRows) {
  for (const auto& [rows, D] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {37, 45}, {5, 128}}) {
    Guarded<TypeParam> x(rows, D, 3), dy(rows, D, 1);
    Guarded<float> rstd(1, rows), dweight(1, D);
    x.fill_uniform(1);
    dy.fill_uniform(3);
    rstd.fill([](auto, auto n) { return 0.5F + static_cast<float>(n % 4); });
    dweight.fill([](auto, auto) { return 7.0F; });
    rms_norm_weight_gradient_cuda(dy.read(), x.read(), rstd.data(), dweight.data(), rows, D, nullptr);
    EXPECT_TRUE(is_near(
        dweight, 1, D,
        [&, num_rows = rows](auto, auto d) {
          double sum = 7;
          for (std::int64_t n = 0; n < num_rows; ++n) sum += dy.at(n, d) * x.at(n, d) * rstd.at(0, n);
          return sum;
        },
        1e-5));
    EXPECT_TRUE(dweight.is_intact());
  }
}

}  // namespace
}  // namespace lora_train::kernels
