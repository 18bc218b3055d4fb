#include "lora_train/kernels/sampling/sampling.h"

#include <ATen/ATen.h>

#include <limits>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"

// B rows, V vocabulary.
namespace lora_train::kernels {
namespace {

using namespace testing_support;

class Sampling : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Sampling);

TEST_P(Sampling, DrawsTheTokensOfTheReference) {
  const auto place = GetParam();
  if (place.dtype != at::kFloat) GTEST_SKIP() << "logits are fp32";
  for (const int64_t V : {3, 333, 5000}) {
    auto logits = at::empty({4, V + 5}, at::device(place.device).dtype(at::kFloat)).narrow(1, 0, V);  // strided rows
    logits.copy_(uniform({4, V}, 1) * 8);
    logits[2][V - 1] = std::numeric_limits<float>::infinity();
    const auto keys = (at::arange(4, at::kLong) * 1234567891234).to(place.device);
    const auto positions = (at::arange(4, at::kLong) + 3).to(place.device);
    for (const auto& filter : {SamplingFilter{}, {0.7}, {1, 10}, {1, 0, 0.8}, {0.9, 30, 0.9, 0.02}}) {
      auto got = at::full({4}, 7, keys.options().dtype(at::kInt)), want = at::full_like(got, 8);
      sample_tokens(logits, filter, keys, positions, got);
      sample_tokens_reference(logits, filter, keys, positions, want);
      EXPECT_TRUE(at::equal(got, want)) << got << want;
      EXPECT_EQ(got[2].item<int>(), -1);
    }
  }
}

TEST(Sampling, RefusesAnotherNumberOfRows) {
  const auto logits = at::zeros({2, 5}), numbers = at::zeros({2}, at::kLong);
  auto three = at::zeros({3}, at::kInt), two = at::zeros({2}, at::kInt);
  EXPECT_THROW(sample_tokens(logits, {}, numbers, numbers, three), ShapeError);
  EXPECT_THROW(sample_tokens(logits, {}, numbers, numbers.narrow(0, 0, 1), two), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
