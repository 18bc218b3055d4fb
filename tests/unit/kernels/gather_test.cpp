#include "lora_train/kernels/gather.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Gather : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Gather);

TEST_P(Gather, PicksRowsAndPutsThemBack) {
  const auto place = GetParam();
  for (const int64_t D : {1, 37, 128}) {
    const auto rows = at::tensor({1, 2, 5, 10}, at::kLong).to(place.device);
    const auto from = place.put(uniform({11, D}, 1));
    auto picked = place.empty({4, D}), whole = place.empty({11, D});
    gather_rows(from, rows, picked);
    EXPECT_TRUE(at::equal(picked, from.index_select(0, rows)));
    EXPECT_TRUE(gaps_are_untouched(picked));
    scatter_rows(picked, rows, whole);
    EXPECT_TRUE(at::equal(whole, at::zeros_like(whole).index_copy_(0, rows, picked)));
    EXPECT_TRUE(gaps_are_untouched(whole));
  }
}

TEST_P(Gather, NoRowsLeaveZeros) {
  const auto place = GetParam();
  const auto none = at::empty({0}, at::device(place.device).dtype(at::kLong));
  auto whole = place.empty({3, 8}), picked = at::empty({0, 8}, whole.options());
  gather_rows(whole, none, picked);
  scatter_rows(picked, none, whole);
  EXPECT_TRUE(at::equal(whole, at::zeros({3, 8}, whole.options())));
}

TEST(Gather, RefusesAnotherNumberOfRows) {
  auto to = at::empty({2, 5});
  EXPECT_THROW(gather_rows(at::ones({4, 5}), at::tensor({1, 2, 3}, at::kLong), to), ShapeError);
  EXPECT_THROW(scatter_rows(at::ones({3, 5}), at::tensor({0, 1}, at::kLong), to), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
