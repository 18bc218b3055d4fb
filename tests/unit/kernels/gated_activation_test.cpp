#include "lora_train/kernels/gated_activation/gated_activation.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

const std::vector<std::pair<int64_t, int64_t>> kSizes = {{1, 1}, {3, 7}, {5, 33}, {65, 129}, {1, 4101}, {2, 9728}};

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh};

class GatedActivation : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(GatedActivation);

TEST(GatedActivationReference, MatchesAtenAutogradInFp64) {
  for (const auto activation : kActivations) {
    const auto gate_up = (uniform({5, 66}, 1, at::kDouble) * 6).detach().requires_grad_();
    const auto dy = uniform({5, 33}, 2, at::kDouble);
    const auto gate = gate_up.slice(1, 0, 33), up = gate_up.slice(1, 33, 66);
    const auto expected = (activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
    expected.backward(dy);
    auto y = at::empty({5, 33}, at::kDouble), d = at::empty({5, 66}, at::kDouble);
    gated_activation_forward_reference(gate_up.detach(), y, activation);
    gated_activation_backward_reference(dy, gate_up.detach(), d, activation);
    EXPECT_CLOSE(y, expected.detach(), 1e-13);
    EXPECT_CLOSE(d, gate_up.grad(), 1e-13);
  }
}

TEST(GatedActivationReference, GradientMatchesCentralDifferences) {
  for (const auto activation : kActivations) {
    const auto gate_up = uniform({3, 14}, 1, at::kDouble) * 3, dy = uniform({3, 7}, 2, at::kDouble);
    auto y = at::empty({3, 7}, at::kDouble), d = at::empty({3, 14}, at::kDouble);
    const auto expected = central_differences(
        [&](const at::Tensor& values) {
          gated_activation_forward_reference(values, y, activation);
          return (y * dy).sum().item<double>();
        },
        gate_up);
    gated_activation_backward_reference(dy, gate_up, d, activation);
    EXPECT_CLOSE(d, expected, kDifferenceTolerance);
  }
}

TEST_P(GatedActivation, MatchesReferenceAndMayWriteInPlace) {
  const auto place = GetParam();
  for (const auto& [rows, F] : kSizes) {
    for (const auto activation : kActivations) {
      const auto gate_up = place.put(uniform({rows, 2 * F}, 6) * 9);
      const auto dy = place.put(uniform({rows, F}, 2));
      auto expected_y = at::empty({rows, F}, at::kDouble), expected_d = at::empty({rows, 2 * F}, at::kDouble);
      gated_activation_forward_reference(f64(gate_up), expected_y, activation);
      gated_activation_backward_reference(f64(dy), f64(gate_up), expected_d, activation);
      const double limit = place.dtype == at::kFloat ? kTightFloatTolerance : tolerance(place.dtype);
      auto y = place.empty({rows, F});
      gated_activation_forward(gate_up, y, activation);
      EXPECT_CLOSE(y, expected_y, limit) << rows << "x" << F << " activation " << static_cast<int>(activation);
      EXPECT_TRUE(gaps_are_untouched(y));
      auto d = place.empty({rows, 2 * F}), in_place = place.put(gate_up);
      gated_activation_backward(dy, gate_up, d, activation);
      EXPECT_CLOSE(d, expected_d, limit) << rows << "x" << F << " activation " << static_cast<int>(activation);
      gated_activation_backward(dy, in_place, in_place, activation);
      EXPECT_TRUE(at::equal(d, in_place));
      EXPECT_TRUE(gaps_are_untouched(d) && gaps_are_untouched(in_place));
    }
  }
}

TEST_P(GatedActivation, SaturatesWithoutNaN) {
  const auto place = GetParam();
  for (const auto activation : kActivations) {
    const auto gate = at::tensor({-1e4, -200.0, -120.0, -0.0, 88.5, 200.0, 1e4}, at::kDouble);
    const auto gate_up = at::cat({gate, at::ones({7}, at::kDouble)}).unsqueeze(0).to(place.device, place.dtype);
    auto y = place.empty({1, 7});
    gated_activation_forward(gate_up, y, activation);
    auto expected = at::empty({1, 7}, at::kDouble);
    gated_activation_forward_reference(f64(gate_up), expected, activation);
    EXPECT_CLOSE(y, expected, tolerance(place.dtype));
    auto d = at::empty_like(gate_up);
    gated_activation_backward(at::ones({1, 7}, gate_up.options()), gate_up, d, activation);
    EXPECT_TRUE(d.isfinite().all().item<bool>());
  }
}

TEST_P(GatedActivation, CarriesNaN) {
  const auto place = GetParam();
  for (const auto activation : kActivations) {
    auto gate_up = at::ones({1, 40}, at::device(place.device).dtype(place.dtype));
    gate_up[0][3] = std::numeric_limits<double>::quiet_NaN();
    auto y = place.empty({1, 20});
    gated_activation_forward(gate_up, y, activation);
    EXPECT_EQ(y.isnan().sum().item<int64_t>(), 1);
    EXPECT_TRUE(y[0][3].isnan().item<bool>());
  }
}

TEST(GatedActivation, RefusesAnOutputOfAnotherWidth) {
  auto y = at::empty({2, 5});
  EXPECT_THROW(gated_activation_forward(at::ones({2, 8}), y), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
