#include "lora_train/kernels/dropout/dropout.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/philox.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr PhiloxKey kKey{0xa4093822u, 0x299f31d0u};

class Dropout : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Dropout);

at::Tensor ints(std::vector<int> values) { return at::tensor(values, at::kInt); }

at::Tensor words(PhiloxKey key, at::Device device = at::kCPU) {
  return ints({static_cast<int>(key.k0), static_cast<int>(key.k1)}).to(device);
}

TEST_P(Dropout, DrawsItsMaskFromPhiloxOfDocumentPositionAndFeature) {
  const auto place = GetParam();
  const std::vector<int> documents = {0, 0, 3, 70000}, positions = {0, 1, 5, 2047};
  for (const int64_t D : {1, 6, 67}) {
    for (const double p : {0.0, 0.05, 0.5, 0.99}) {
      const auto x = place.put(uniform({4, D}, 1) + 2);
      auto y = place.empty({4, D});
      dropout_forward(x, ints(documents).to(place.device), ints(positions).to(place.device), words(kKey, place.device),
                      p, y);
      for (int64_t n = 0; n < 4; ++n) {
        for (int64_t d = 0; d < D; ++d) {
          const auto token = static_cast<std::size_t>(n);
          const auto drawn =
              philox4x32({static_cast<std::uint32_t>(documents[token]), static_cast<std::uint32_t>(positions[token]),
                          static_cast<std::uint32_t>(d / 4), 0},
                         kKey);
          const double u = static_cast<double>(drawn[static_cast<std::size_t>(d % 4)] >> 8) * std::exp2(-24);
          const double expected = u >= p ? x[n][d].item<double>() / (1 - p) : 0;
          EXPECT_NEAR(y[n][d].item<double>(), expected, tolerance(place.dtype) * std::abs(expected)) << n << " " << d;
        }
      }
      EXPECT_TRUE(gaps_are_untouched(y));
    }
  }
}

TEST_P(Dropout, KeepsTheShareItShouldAndMayWriteInPlace) {
  const auto place = GetParam();
  auto x = at::ones({200, 250}, at::device(place.device).dtype(place.dtype));
  const auto rows = at::arange(200, at::kInt).to(place.device);
  dropout_forward(x, at::zeros_like(rows), rows, words(kKey, place.device), 0.1, x);
  const double kept = (x != 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.9, 4 * std::sqrt(0.09 / 50000));
}

TEST_P(Dropout, DoesNotDependOnWhereARowLies) {
  const auto place = GetParam();
  const auto x = place.put(uniform({6, 33}, 1));
  const auto documents = ints({4, 4, 9, 9, 9, 2}).to(place.device),
             positions = ints({0, 1, 0, 1, 2, 0}).to(place.device);
  const auto order = at::tensor({5, 2, 0, 4, 1, 3}, at::kLong).to(place.device);
  auto y = place.empty({6, 33}), shuffled = place.empty({6, 33});
  dropout_forward(x, documents, positions, words(kKey, place.device), 0.4, y);
  dropout_forward(x.index_select(0, order), documents.index_select(0, order), positions.index_select(0, order),
                  words(kKey, place.device), 0.4, shuffled);
  EXPECT_TRUE(at::equal(shuffled, y.index_select(0, order)));
  dropout_forward(x, documents, positions, words({kKey.k0, kKey.k1 + 1}, place.device), 0.4, shuffled);
  EXPECT_FALSE(at::equal(shuffled, y));
}

TEST(Dropout, RefusesAProbabilityOfOne) {
  auto x = at::ones({1, 4});
  EXPECT_THROW(dropout_forward(x, ints({0}), ints({0}), words(kKey), 1.0, x), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
