#include "lora_train/kernels/rope/rope.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Rope : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Rope);

at::Tensor inverse_frequencies(int64_t E, double theta) {
  return at::pow(theta, at::arange(0, E, 2, at::kDouble) / static_cast<double>(E)).reciprocal().to(at::kFloat);
}

RopeTable table_on(at::DeviceType device, int64_t E, int64_t num_positions, double factor) {
  return make_rope_table(inverse_frequencies(E, 10000).to(device), num_positions, factor);
}

TEST(RopeTable, HoldsCosineAndSineOfPositionTimesFrequency) {
  const auto inv_freq = inverse_frequencies(10, 10000);
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

// Pairs (i, i + E/2) as complex numbers turned by e^(i angle).
at::Tensor rotate_by_complex_numbers(const at::Tensor& x, const at::Tensor& positions, const RopeTable& table) {
  const int64_t half = x.size(2) / 2;
  const auto pairs = at::complex(x.slice(2, 0, half), x.slice(2, half, 2 * half));
  const auto index = positions.to(at::kLong);
  const auto turn = at::complex(table.cos.to(at::kDouble), table.sin.to(at::kDouble)).index_select(0, index);
  const auto turned = pairs * turn.unsqueeze(1);
  return at::cat({at::real(turned), at::imag(turned)}, -1);
}

TEST(RopeReference, TurnsPairsOfHalvesInFp64) {
  const auto table = table_on(at::kCPU, 10, 64, 1.0);
  const auto positions = at::tensor({0, 63, 5, 5, 17}, at::kInt);
  auto x = uniform({5, 3, 10}, 1, at::kDouble);
  const auto expected = rotate_by_complex_numbers(x, positions, table);
  rope_in_place_reference(x, positions, table, false);
  EXPECT_CLOSE(x, expected, 1e-14);
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
  const auto place = GetParam();
  for (const auto& [N, H, E] : std::vector<std::array<int64_t, 3>>{{1, 1, 2}, {3, 5, 6}, {67, 3, 34}, {9, 14, 128}}) {
    const auto table = table_on(place.device, E, 101, 1.1), host_table = table_on(at::kCPU, E, 101, 1.1);
    const auto positions = (at::arange(N, at::kInt) * 37).remainder(101).to(at::kInt);
    for (const bool inverse : {false, true}) {
      auto x = place.put(uniform({N, H, E}, 1));
      auto expected = f64(x);
      rope_in_place_reference(expected, positions, host_table, inverse);
      rope_in_place(x, positions.to(place.device), table, inverse);
      EXPECT_CLOSE(x, expected, tolerance(place.dtype)) << N << " " << H << " " << E << " " << inverse;
      EXPECT_TRUE(gaps_are_untouched(x));
    }
  }
}

TEST(Rope, RefusesATableOfAnotherHeadSize) {
  auto x = at::ones({2, 1, 8});
  EXPECT_THROW(rope_in_place(x, at::zeros({2}, at::kInt), table_on(at::kCPU, 6, 4, 1), false), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
