#include "lora_train/kernels/lora.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Size {
  int64_t N, C, R;
};
const std::vector<Size> kSizes = {{1, 1, 1}, {3, 7, 2}, {257, 129, 8}, {100, 1000, 16}, {65, 70, 33}, {31, 5, 64}, {9, 96, 5}};

class LoraProducts : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(LoraProducts);

// Sums are fp32 (fp64) whatever the inputs, so bf16 inputs lose nothing.
double sum_tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : kTightFloatTolerance; }

TEST_P(LoraProducts, GradientOfBAddsScaledProduct) {
  const auto place = GetParam();
  for (const auto& [N, O, R] : kSizes) {
    const auto dy = place.put(uniform({N, O}, 1)), s = place.put(uniform({N, R}, 2));
    auto grad = with_row_gaps(uniform({O, R}, 3).to(place.statistic({1}).options()));
    const auto expected = f64(grad) + 0.3 * f64(dy).t().matmul(f64(s));
    lora_grad_b(dy, s, 0.3, grad);
    EXPECT_CLOSE(grad, expected, sum_tolerance(place.dtype)) << N << " " << O << " " << R;
    EXPECT_TRUE(gaps_are_untouched(grad));
  }
}

TEST_P(LoraProducts, GradientOfAAddsProduct) {
  const auto place = GetParam();
  for (const auto& [N, D, R] : kSizes) {
    const auto ds = place.put(uniform({N, R}, 1)), x = place.put(uniform({N, D}, 2));
    auto grad = with_row_gaps(uniform({R, D}, 3).to(place.statistic({1}).options()));
    const auto expected = f64(grad) + f64(ds).t().matmul(f64(x));
    lora_grad_a(ds, x, grad);
    EXPECT_CLOSE(grad, expected, sum_tolerance(place.dtype)) << N << " " << D << " " << R;
    EXPECT_TRUE(gaps_are_untouched(grad));
  }
}

TEST(LoraProducts, RefusesAGradientOfAnotherShape) {
  auto grad = at::zeros({3, 5});
  EXPECT_THROW(lora_grad_b(at::ones({2, 4}), at::ones({2, 5}), 1, grad), ShapeError);
  EXPECT_THROW(lora_grad_a(at::ones({2, 4}), at::ones({2, 5}), grad), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
