#include "lora_train/kernels/swiglu.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

const std::vector<std::pair<int64_t, int64_t>> kSizes = {{1, 1}, {3, 7}, {5, 33}, {65, 129}, {2, 9728}};

class Swiglu : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Swiglu);

TEST(SwigluReference, MatchesAtenAutogradInFp64) {
  const auto gate_up = (uniform({5, 66}, 1, at::kDouble) * 6).detach().requires_grad_();
  const auto dy = uniform({5, 33}, 2, at::kDouble);
  const auto expected = at::silu(gate_up.slice(1, 0, 33)) * gate_up.slice(1, 33, 66);
  expected.backward(dy);
  auto y = at::empty({5, 33}, at::kDouble), d = at::empty({5, 66}, at::kDouble);
  swiglu_forward_reference(gate_up.detach(), y);
  swiglu_backward_reference(dy, gate_up.detach(), d);
  EXPECT_CLOSE(y, expected.detach(), 1e-13);
  EXPECT_CLOSE(d, gate_up.grad(), 1e-13);
}

TEST(SwigluReference, GradientMatchesCentralDifferences) {
  const auto gate_up = uniform({3, 14}, 1, at::kDouble) * 3, dy = uniform({3, 7}, 2, at::kDouble);
  auto y = at::empty({3, 7}, at::kDouble), d = at::empty({3, 14}, at::kDouble);
  const auto expected = central_differences(
      [&](const at::Tensor& values) {
        swiglu_forward_reference(values, y);
        return (y * dy).sum().item<double>();
      },
      gate_up);
  swiglu_backward_reference(dy, gate_up, d);
  EXPECT_CLOSE(d, expected, kDifferenceTolerance);
}

TEST_P(Swiglu, MatchesReferenceAndMayWriteInPlace) {
  const auto place = GetParam();
  for (const auto& [rows, F] : kSizes) {
    const auto gate_up = (uniform({rows, 2 * F}, 1) * 9).to(place.device, place.dtype);
    const auto dy = place.put(uniform({rows, F}, 2));
    auto expected_y = at::empty({rows, F}, at::kDouble), expected_d = at::empty({rows, 2 * F}, at::kDouble);
    swiglu_forward_reference(f64(gate_up), expected_y);
    swiglu_backward_reference(f64(dy), f64(gate_up), expected_d);
    const double limit = place.dtype == at::kFloat ? kTightFloatTolerance : tolerance(place.dtype);
    auto y = place.empty({rows, F});
    swiglu_forward(gate_up, y);
    EXPECT_CLOSE(y, expected_y, limit) << rows << "x" << F;
    EXPECT_TRUE(gaps_are_untouched(y));
    auto d = at::empty_like(gate_up), in_place = gate_up.clone();
    swiglu_backward(dy, gate_up, d);
    EXPECT_CLOSE(d, expected_d, limit);
    swiglu_backward(dy, in_place, in_place);
    EXPECT_TRUE(at::equal(d, in_place));
  }
}

TEST_P(Swiglu, SaturatesWithoutNaN) {
  const auto place = GetParam();
  const auto gate = at::tensor({-1e4, -200.0, -120.0, -0.0, 88.5, 200.0, 1e4}, at::kDouble);
  const auto gate_up = at::cat({gate, at::ones({7}, at::kDouble)}).unsqueeze(0).to(place.device, place.dtype);
  auto y = place.empty({1, 7});
  swiglu_forward(gate_up, y);
  auto expected = at::empty({1, 7}, at::kDouble);
  swiglu_forward_reference(f64(gate_up), expected);
  EXPECT_CLOSE(y, expected, tolerance(place.dtype));
  auto d = at::empty_like(gate_up);
  swiglu_backward(at::ones({1, 7}, gate_up.options()), gate_up, d);
  EXPECT_TRUE(d.isfinite().all().item<bool>());
}

TEST_P(Swiglu, CarriesNaN) {
  const auto place = GetParam();
  auto gate_up = at::ones({1, 40}, at::device(place.device).dtype(place.dtype));
  gate_up[0][3] = std::numeric_limits<double>::quiet_NaN();
  auto y = place.empty({1, 20});
  swiglu_forward(gate_up, y);
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 1);
  EXPECT_TRUE(y[0][3].isnan().item<bool>());
}

TEST(Swiglu, RefusesAnOutputOfAnotherWidth) {
  auto y = at::empty({2, 5});
  EXPECT_THROW(swiglu_forward(at::ones({2, 8}), y), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
