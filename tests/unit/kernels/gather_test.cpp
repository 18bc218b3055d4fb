#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "lora_train/kernels/embedding/embedding.h"
#include "support/kernel_test.h"
#include "support/tensors.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Gather : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Gather);

TEST_P(Gather, PicksRowsAndPutsThemBack) {
  const auto place = GetParam();
  for (const int64_t D : {1, 37, 128, 2568}) {
    const auto rows = at::tensor({5, 2, 1, 10}, at::kLong).to(place.device);
    const auto from = place.put(uniform({11, D}, 1));
    auto picked = place.empty({4, D}), whole = place.empty({11, D});
    gather_rows(from, rows, picked);
    EXPECT_TRUE(at::equal(picked, from.index_select(0, rows)));
    EXPECT_TRUE(gaps_are_untouched(picked));
    whole.fill_(3);
    scatter_rows(picked, rows, whole);
    EXPECT_TRUE(at::equal(whole, at::full_like(whole, 3).index_copy_(0, rows, picked)));
    EXPECT_TRUE(gaps_are_untouched(whole));
  }
}

TEST_P(Gather, RowsPastTheEndAreZerosAndGoNowhere) {
  const auto place = GetParam();
  const auto rows = at::tensor({2, 3, 0, 1000}, at::kLong).to(place.device);
  auto whole = place.put(uniform({3, 24}, 1)), picked = place.empty({4, 24}), target = place.empty({3, 24});
  gather_rows(whole, rows, picked);
  EXPECT_TRUE(at::equal(picked[0], whole[2]));
  EXPECT_TRUE(picked[1].eq(0).all().item<bool>());
  EXPECT_TRUE(picked[3].eq(0).all().item<bool>());
  target.fill_(5);
  scatter_rows(picked, rows, target);
  EXPECT_TRUE(at::equal(target[2], whole[2]));
  EXPECT_TRUE(at::equal(target[0], whole[0]));
  EXPECT_TRUE(target[1].eq(5).all().item<bool>());
}

TEST_P(Gather, NoRowsChangeNothing) {
  const auto place = GetParam();
  const auto none = at::empty({0}, at::device(place.device).dtype(at::kLong));
  auto whole = place.empty({3, 8}), picked = at::empty({0, 8}, whole.options());
  whole.fill_(1);
  gather_rows(whole, none, picked);
  scatter_rows(picked, none, whole);
  EXPECT_TRUE(at::equal(whole, at::ones({3, 8}, whole.options())));
}

TEST_P(Gather, TakesAListPartByPart) {
  const auto place = GetParam();
  for (const int64_t count : {1, 70, 3000}) {
    const auto rows = (at::arange(3 * count, at::kLong) * 7).to(place.device);
    const auto targets = (at::arange(3 * count, at::kInt) + 5).to(place.device);
    for (const auto& weights : {at::Tensor(), uniform({3 * count}, 1).to(place.device)}) {
      auto next = at::full({}, count, rows.options());
      RowLists picked{at::zeros({count}, rows.options()), at::zeros({count}, targets.options()), {}};
      if (weights.defined()) picked.weights = at::zeros({count}, weights.options());
      for (const int64_t begin : {count, 2 * count}) {
        take_next({rows, targets, weights}, next, picked);
        EXPECT_TRUE(at::equal(picked.rows, rows.narrow(0, begin, count))) << count;
        EXPECT_TRUE(at::equal(picked.targets, targets.narrow(0, begin, count))) << count;
        if (weights.defined()) {
          EXPECT_TRUE(at::equal(picked.weights, weights.narrow(0, begin, count))) << count;
        }
        EXPECT_EQ(next.item<int64_t>(), begin + count);
      }
    }
  }
}

TEST(Gather, RefusesAnotherNumberOfRows) {
  auto to = at::empty({2, 5});
  EXPECT_THROW(gather_rows(at::ones({4, 5}), at::tensor({1, 2, 3}, at::kLong), to), ShapeError);
  EXPECT_THROW(scatter_rows(at::ones({3, 5}), at::tensor({0, 1}, at::kLong), to), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
