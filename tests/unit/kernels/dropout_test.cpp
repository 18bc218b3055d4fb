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

/// What every element draws, in [0, 1).
at::Tensor draws(const std::vector<int>& documents, const std::vector<int>& positions, int64_t D) {
  at::Tensor u = at::empty({std::ssize(documents), D}, at::kDouble);
  auto* to = u.mutable_data_ptr<double>();
  for (std::size_t n = 0; n < documents.size(); ++n) {
    for (int64_t d = 0; d < D; ++d) {
      const auto drawn = philox4x32({static_cast<std::uint32_t>(documents[n]), static_cast<std::uint32_t>(positions[n]),
                                     static_cast<std::uint32_t>(d / 4), 0},
                                    kKey);
      *to++ = static_cast<double>(drawn[static_cast<std::size_t>(d % 4)] >> 8) * std::exp2(-24);
    }
  }
  return u;
}

TEST_P(Dropout, DrawsItsMaskFromPhiloxOfDocumentPositionAndFeature) {
  const auto place = GetParam();
  const std::vector<int> documents = {0, 0, 3, 70000}, positions = {0, 1, 5, 2047};
  for (const int64_t D : {1, 6, 67, 64, 4168}) {
    const at::Tensor u = draws(documents, positions, D);
    for (const double p : {0.0, 0.05, 0.5, 0.99}) {
      const auto run = [&](const at::Tensor& x, at::Tensor& y) {
        dropout_forward(x, ints(documents).to(place.device), ints(positions).to(place.device),
                        words(kKey, place.device), p, y);
      };
      const auto x = place.put(uniform({4, D}, 1) + 2);
      auto y = place.empty({4, D}), in_place = place.put(x);
      run(x, y);
      EXPECT_TRUE(at::allclose(f64(y), at::where(u >= p, f64(x) / (1 - p), 0.0), tolerance(place.dtype), 0)) << D;
      EXPECT_TRUE(gaps_are_untouched(y));
      run(in_place, in_place);
      EXPECT_TRUE(at::equal(in_place, y)) << D;
    }
  }
}

TEST_P(Dropout, KeepsWhatDrawsTheProbability) {
  const auto place = GetParam();
  const double u = draws({3}, {5}, 4)[0][2].item<double>();
  for (const bool is_above : {false, true}) {
    auto x = at::ones({1, 4}, at::device(place.device).dtype(place.dtype));
    dropout_forward(x, ints({3}).to(place.device), ints({5}).to(place.device), words(kKey, place.device),
                    is_above ? u + std::exp2(-24) : u, x);
    EXPECT_EQ(x[0][2].item<double>() == 0, is_above);
  }
}

TEST_P(Dropout, ADroppedNaNIsZero) {
  const auto place = GetParam();
  const at::Tensor is_kept = draws({3}, {5}, 64) >= 0.5;
  auto x = at::full({1, 64}, std::nan(""), at::device(place.device).dtype(place.dtype));
  dropout_forward(x, ints({3}).to(place.device), ints({5}).to(place.device), words(kKey, place.device), 0.5, x);
  EXPECT_TRUE(at::equal(x.isnan().cpu(), is_kept));
  EXPECT_TRUE(at::equal(x.ne(0).cpu(), is_kept));
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
