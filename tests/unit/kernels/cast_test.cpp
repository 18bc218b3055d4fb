#include "lora_train/kernels/cast/cast.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Cast : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Cast);

TEST_P(Cast, MultipliesAndRoundsAsAtenDoes) {
  const auto place = GetParam();
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 7}, {33, 16}, {3, 2048}}) {
    const auto from = with_row_gaps(uniform({rows, width}, 1).to(place.device));
    for (const double scale : {1.0, 0.7, 16.0 / 3.0}) {
      auto to = place.empty({rows, width});
      scaled_copy(from, scale, to);
      EXPECT_TRUE(at::equal(to, (from * scale).to(place.dtype))) << rows << " x " << width;
      EXPECT_TRUE(gaps_are_untouched(to));
      auto back = with_row_gaps(at::zeros({rows, width}, from.options()));
      scaled_copy(to, scale, back);
      EXPECT_CLOSE(back, f64(to) * scale, tolerance(at::kFloat));
    }
  }
}

TEST_P(Cast, TakesFlatBuffers) {
  const auto place = GetParam();
  const auto from = uniform({1003}, 1).to(place.device);
  auto to = at::zeros({1003}, at::device(place.device).dtype(place.dtype));
  scaled_copy(from, 1.0, to);
  EXPECT_TRUE(at::equal(to, from.to(place.dtype)));
}

TEST_P(Cast, ManyCopiesTakeTheNewValuesOfTheirSources) {
  const auto place = GetParam();
  std::vector<at::Tensor> from, to;
  ScaledCopies copies;
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{300, 16}, {16, 300}, {7, 1}, {40, 15}, {700, 64}}) {
    from.push_back(uniform({rows, width}, static_cast<unsigned>(rows)).to(place.device));
    to.push_back(place.empty({rows, width}));
    copies.add(from.back(), 0.25 * static_cast<double>(from.size()), to.back());
  }
  for (int run = 0; run < 2; ++run) {
    copies.run();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const double scale = 0.25 * static_cast<double>(i + 1);
      EXPECT_TRUE(at::equal(to[i], (from[i] * scale).to(place.dtype))) << i;
      EXPECT_TRUE(gaps_are_untouched(to[i]));
      from[i].mul_(-3);
    }
  }
}

TEST_P(Cast, CarriesInfinityAndNaN) {
  const auto place = GetParam();
  for (const int64_t width : {8, 7}) {
    auto from = at::ones({1, width}, at::device(place.device)), to = place.empty({1, width});
    from[0][2] = HUGE_VAL;
    from[0][5] = std::nan("");
    scaled_copy(from, 0.7, to);
    EXPECT_TRUE(at::allclose(to, (from * 0.7).to(place.dtype), 0, 0, /*equal_nan=*/true)) << to;
  }
}

TEST(Cast, RefusesAnotherShape) {
  auto to = at::empty({2, 5});
  EXPECT_THROW(scaled_copy(at::ones({2, 4}), 1.0, to), ShapeError);
  auto strided = at::empty({8}).as_strided({4}, {2});
  EXPECT_THROW(scaled_copy(at::ones({4}), 1.0, strided), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
